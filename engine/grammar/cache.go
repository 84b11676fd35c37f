package grammar

import (
	"crypto/sha256"
	"runtime"

	"golang.org/x/sync/singleflight"
	"k8s.io/utils/lru"
)

// Cache compiles grammars, and keeps those used last. It may be used from
// several goroutines; as many as half of the processors compile at once, so that
// no flood of grammars takes the machine from the model.
type Cache struct {
	vocabulary *Vocabulary
	grammars   *lru.Cache
	flight     singleflight.Group
	slots      chan struct{}
}

// NewCache makes a cache of size grammars over a vocabulary.
func NewCache(v *Vocabulary, size int) *Cache {
	return &Cache{vocabulary: v, grammars: lru.New(size), slots: make(chan struct{}, max(1, runtime.GOMAXPROCS(0)/2))}
}

// Get is the grammar of a source; the error is Compile's.
func (c *Cache) Get(s Source) (*Grammar, error) {
	sum := sha256.Sum256([]byte(s.key))
	key := string(sum[:])
	if g, ok := c.grammars.Get(key); ok {
		return g.(*Grammar), nil
	}
	g, err, _ := c.flight.Do(key, func() (any, error) {
		c.slots <- struct{}{}
		defer func() { <-c.slots }()
		g, err := Compile(c.vocabulary, s)
		if err == nil {
			c.grammars.Add(key, g)
		}
		return g, err
	})
	if err != nil {
		return nil, err
	}
	return g.(*Grammar), nil
}
