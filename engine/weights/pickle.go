package weights

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unicode/utf8"
)

// maxValues is the most values that a pickle may make: many times what the
// largest models need.
const maxValues = 1 << 23

// The values of a pickle. None of them is ever walked through, so neither depth
// nor cycles matter.
type (
	pickleNone    struct{}
	pickleTuple   []any
	pickleList    struct{ items []any }
	pickleDict    struct{ pairs []picklePair }
	pickleGlobal  string // module.name
	pickleStorage struct {
		key      string // its file's name in the archive
		dtype    DType  // 0: bytes, which the tensor gives a type
		elements int64
	}
	pickleTensor struct {
		storage      pickleStorage
		dtype        DType
		offset       int64 // in elements, as the strides
		size, stride []int64
	}
	picklePair struct {
		key   string
		value any
	}
)

// storages are the classes of typed storages; dtypeGlobals the types by name.
var (
	storages = map[pickleGlobal]DType{
		"torch.BFloat16Storage": BF16, "torch.HalfStorage": F16, "torch.FloatStorage": F32, "torch.DoubleStorage": F64,
		"torch.CharStorage": I8, "torch.ShortStorage": I16, "torch.IntStorage": I32, "torch.LongStorage": I64,
		"torch.ByteStorage": U8, "torch.BoolStorage": Bool, "torch.storage.UntypedStorage": 0, "torch.UntypedStorage": 0,
	}
	dtypeGlobals = map[pickleGlobal]DType{
		"torch.bfloat16": BF16, "torch.float16": F16, "torch.float32": F32, "torch.float64": F64,
		"torch.int8": I8, "torch.int16": I16, "torch.int32": I32, "torch.int64": I64,
		"torch.uint8": U8, "torch.uint16": U16, "torch.uint32": U32, "torch.uint64": U64, "torch.bool": Bool,
		"torch.float8_e4m3fn": F8E4M3, "torch.float8_e5m2": F8E5M2, "torch.float8_e8m0fnu": F8E8M0,
	}
)

// callables are the functions and classes that may be called, and what they make.
var callables = map[pickleGlobal]func(args pickleTuple) (any, error){
	"torch._utils._rebuild_tensor_v2": rebuildTensor,
	"torch._utils._rebuild_tensor_v3": rebuildTensor,
	"torch._utils._rebuild_parameter": func(args pickleTuple) (any, error) {
		if len(args) > 0 {
			if t, ok := args[0].(*pickleTensor); ok {
				return t, nil
			}
		}
		return nil, errors.New("a parameter is made of something else than a tensor")
	},
	"collections.OrderedDict": func(args pickleTuple) (any, error) {
		if len(args) > 0 {
			return nil, errors.New("a collections.OrderedDict is made with arguments, which torch does not do")
		}
		return &pickleDict{}, nil
	},
}

// rebuildTensor is (storage, offset, size, stride, requires_grad, hooks), then
// metadata, or the type and metadata (torch/_utils.py).
func rebuildTensor(args pickleTuple) (any, error) {
	if len(args) < 6 {
		return nil, fmt.Errorf("a tensor is made of %d arguments: at least 6 are wanted", len(args))
	}
	storage, ok1 := args[0].(pickleStorage)
	offset, ok2 := args[1].(int64)
	size, ok3 := integers(args[2])
	stride, ok4 := integers(args[3])
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return nil, errors.New("a tensor is made of other arguments than storage, offset, size and stride")
	}
	t := &pickleTensor{storage: storage, dtype: storage.dtype, offset: offset, size: size, stride: stride}
	if len(args) > 6 {
		if name, ok := args[6].(pickleGlobal); ok {
			t.dtype = dtypeGlobals[name]
		}
	}
	if t.dtype == 0 {
		return nil, errors.New("a tensor is made of a storage of bytes without a type")
	}
	return t, nil
}

// integers are the elements of a tuple of integers.
func integers(v any) ([]int64, bool) {
	tuple, ok := v.(pickleTuple)
	list := make([]int64, 0, len(tuple))
	for _, e := range tuple {
		n, isInt := e.(int64)
		ok = ok && isInt
		list = append(list, n)
	}
	return list, ok
}

// unpickler runs a pickle that may make tensors, containers and plain values
// and nothing else. (The format: Python's pickletools.py. Files of torch are of
// protocol 2; those of later ones are read too.)
type unpickler struct {
	data  []byte
	at    int
	stack []any
	marks []int // lengths of the stack at the marks
	memo  map[uint32]any
	made  int
}

// unpickle reads a pickle of a dictionary of tensors.
func unpickle(data []byte) ([]picklePair, error) {
	u := &unpickler{data: data, memo: map[uint32]any{}}
	for {
		at := u.at
		op, err := u.take(1)
		if err == nil && op[0] == '.' {
			break
		}
		if err == nil {
			err = u.step(op[0])
		}
		if err != nil {
			return nil, fmt.Errorf("byte %d: %w", at, err)
		}
	}
	if len(u.stack) != 1 || len(u.marks) > 0 || u.at != len(data) {
		return nil, fmt.Errorf("byte %d: the pickle ends with %d values left and %d bytes to come: the file is damaged", u.at, len(u.stack), len(data)-u.at)
	}
	dict, ok := u.stack[0].(*pickleDict)
	if !ok {
		return nil, errors.New("the file holds no dictionary of tensors: save the model's state_dict()")
	}
	return dict.pairs, nil
}

func (u *unpickler) take(n int) ([]byte, error) {
	if n < 0 || n > len(u.data)-u.at {
		return nil, errors.New("the pickle is cut short: fetch the file again")
	}
	u.at += n
	return u.data[u.at-n : u.at : u.at], nil
}

// number reads an unsigned little-endian integer of n bytes.
func (u *unpickler) number(n int) (uint64, error) {
	b, err := u.take(n)
	var v uint64
	for i := len(b) - 1; i >= 0; i-- {
		v = v<<8 | uint64(b[i])
	}
	return v, err
}

// text reads a string after its length of n bytes.
func (u *unpickler) text(n int) (string, error) {
	size, err := u.number(n)
	if err != nil {
		return "", err
	}
	b, err := u.take(int(min(size, math.MaxInt)))
	if err == nil && !utf8.Valid(b) {
		err = errors.New("a string is not UTF-8: the file is damaged")
	}
	return string(b), err
}

// line reads up to a newline.
func (u *unpickler) line() (string, error) {
	for i := u.at; i < len(u.data) && i < u.at+256; i++ {
		if u.data[i] == '\n' {
			s := string(u.data[u.at:i])
			u.at = i + 1
			return s, nil
		}
	}
	return "", errors.New("a name does not end within 256 bytes: the file is damaged")
}

func (u *unpickler) push(v any) error {
	if u.made++; u.made > maxValues {
		return fmt.Errorf("the pickle makes more than %d values, too many for a model", maxValues)
	}
	u.stack = append(u.stack, v)
	return nil
}

// pop takes the last n values, of those after the last mark.
func (u *unpickler) pop(n int) ([]any, error) {
	floor := 0
	if len(u.marks) > 0 {
		floor = u.marks[len(u.marks)-1]
	}
	if len(u.stack)-floor < n {
		return nil, errors.New("an operation wants more values than there are: the file is damaged")
	}
	values := u.stack[len(u.stack)-n:]
	u.stack = u.stack[:len(u.stack)-n]
	return values, nil
}

// popMark takes the values after the last mark, and the mark.
func (u *unpickler) popMark() ([]any, error) {
	if len(u.marks) == 0 {
		return nil, errors.New("an operation wants a mark and there is none: the file is damaged")
	}
	at := u.marks[len(u.marks)-1]
	u.marks = u.marks[:len(u.marks)-1]
	values := u.stack[at:]
	u.stack = u.stack[:at]
	return values, nil
}

// top is the last value, which stays.
func (u *unpickler) top() (any, error) {
	v, err := u.pop(1)
	if err != nil {
		return nil, err
	}
	u.stack = append(u.stack, v[0])
	return v[0], nil
}

// step runs one operation.
func (u *unpickler) step(op byte) error {
	switch op {
	case 0x80: // PROTO
		v, err := u.number(1)
		if err == nil && (v < 2 || v > 5) {
			err = fmt.Errorf("pickle protocol %d: supported are 2 to 5", v)
		}
		return err
	case 0x95: // FRAME: its length says nothing new
		_, err := u.take(8)
		return err
	case '(': // MARK
		if u.made++; u.made > maxValues {
			return fmt.Errorf("the pickle makes more than %d values, too many for a model", maxValues)
		}
		u.marks = append(u.marks, len(u.stack))
		return nil
	case '0': // POP
		_, err := u.pop(1)
		return err
	case 'R', 'b', 'Q', 'c', 0x93:
		return u.object(op)
	case 'q', 'r', 0x94, 'h', 'j':
		return u.memory(op)
	case ']', '}', ')', 't', 0x85, 0x86, 0x87, 'a', 'e', 's', 'u':
		return u.container(op)
	}
	return u.scalar(op)
}

// scalar pushes a plain value.
func (u *unpickler) scalar(op byte) error {
	var v any
	var n uint64
	var err error
	switch op {
	case 'N':
		v = pickleNone{}
	case 0x88:
		v = true
	case 0x89:
		v = false
	case 'J': // BININT
		n, err = u.number(4)
		v = int64(int32(n))
	case 'K':
		n, err = u.number(1)
		v = int64(n)
	case 'M':
		n, err = u.number(2)
		v = int64(n)
	case 0x8a: // LONG1: two's complement of any length
		v, err = u.long()
	case 'G': // BINFLOAT, big-endian
		var b []byte
		if b, err = u.take(8); err == nil {
			v = math.Float64frombits(binary.BigEndian.Uint64(b))
		}
	case 'X':
		v, err = u.text(4)
	case 0x8c:
		v, err = u.text(1)
	case 0x8d:
		v, err = u.text(8)
	default:
		return fmt.Errorf("operation %#02x is not one that a file of tensors needs: convert the file to safetensors where it was made", op)
	}
	if err != nil {
		return err
	}
	return u.push(v)
}

func (u *unpickler) long() (int64, error) {
	size, err := u.number(1)
	if err != nil {
		return 0, err
	}
	if size > 8 {
		return 0, fmt.Errorf("an integer of %d bytes: at most 8 are allowed", size)
	}
	n, err := u.number(int(size))
	if size == 0 {
		return 0, err
	}
	unused := 64 - 8*size
	return int64(n<<unused) >> unused, err
}

// memory stores and fetches by number.
func (u *unpickler) memory(op byte) error {
	width := map[byte]int{'q': 1, 'h': 1, 'r': 4, 'j': 4}[op]
	n, err := u.number(width)
	if err != nil {
		return err
	}
	if op == 'h' || op == 'j' {
		v, ok := u.memo[uint32(n)]
		if !ok {
			return fmt.Errorf("value %d was not stored: the file is damaged", n)
		}
		return u.push(v)
	}
	if op == 0x94 { // MEMOIZE
		n = uint64(len(u.memo))
	}
	v, err := u.top()
	if err != nil {
		return err
	}
	if len(u.memo) >= maxValues {
		return fmt.Errorf("the pickle stores more than %d values, too many for a model", maxValues)
	}
	u.memo[uint32(n)] = v
	return nil
}

// container makes tuples, lists and dictionaries and adds to them.
func (u *unpickler) container(op byte) error {
	switch op {
	case ']':
		return u.push(&pickleList{})
	case '}':
		return u.push(&pickleDict{})
	case ')':
		return u.push(pickleTuple{})
	}
	var values []any
	var err error
	switch op {
	case 't', 'e', 'u':
		values, err = u.popMark()
	case 'a':
		values, err = u.pop(1)
	case 's':
		values, err = u.pop(2)
	default: // TUPLE1 to TUPLE3
		values, err = u.pop(int(op - 0x84))
	}
	if err != nil {
		return err
	}
	if op == 't' || op >= 0x85 {
		return u.push(append(pickleTuple{}, values...))
	}
	to, err := u.top()
	if err != nil {
		return err
	}
	switch to := to.(type) {
	case *pickleList:
		if op == 'a' || op == 'e' {
			to.items = append(to.items, values...)
			return nil
		}
	case *pickleDict:
		if op == 's' || op == 'u' {
			return to.add(values)
		}
	}
	return errors.New("something is added to what is no list or dictionary: the file is damaged")
}

// add adds keys and values in turn.
func (d *pickleDict) add(values []any) error {
	if len(values)%2 != 0 {
		return errors.New("a key of a dictionary has no value: the file is damaged")
	}
	for i := 0; i < len(values); i += 2 {
		key, ok := values[i].(string)
		if !ok {
			return errors.New("a key of a dictionary is no string: a file of tensors has none such")
		}
		d.pairs = append(d.pairs, picklePair{key, values[i+1]})
	}
	return nil
}

// object runs what makes objects.
func (u *unpickler) object(op byte) error {
	switch op {
	case 'c', 0x93: // GLOBAL, STACK_GLOBAL
		return u.global(op)
	case 'Q': // BINPERSID
		v, err := u.pop(1)
		if err != nil {
			return err
		}
		storage, err := persistent(v[0])
		if err != nil {
			return err
		}
		return u.push(storage)
	}
	v, err := u.pop(2)
	if err != nil {
		return err
	}
	if op == 'b' { // BUILD: a state_dict's attribute _metadata
		_, ok1 := v[0].(*pickleDict)
		_, ok2 := v[1].(*pickleDict)
		if !ok1 || !ok2 {
			return errors.New("the state of an object is set, which tensors and dictionaries do not need: convert the file to safetensors where it was made")
		}
		return u.push(v[0])
	}
	name, ok1 := v[0].(pickleGlobal)
	args, ok2 := v[1].(pickleTuple)
	call := callables[name]
	if !ok1 || !ok2 || call == nil {
		return errors.New("something is called that is no function for making tensors: the file may be harmful")
	}
	made, err := call(args)
	if err != nil {
		return err
	}
	return u.push(made)
}

// global pushes a name from Python, if it is one of those known.
func (u *unpickler) global(op byte) error {
	var module, name string
	var err error
	if op == 'c' {
		if module, err = u.line(); err != nil {
			return err
		}
		if name, err = u.line(); err != nil {
			return err
		}
	} else {
		v, err := u.pop(2)
		if err != nil {
			return err
		}
		var ok1, ok2 bool
		module, ok1 = v[0].(string)
		name, ok2 = v[1].(string)
		if !ok1 || !ok2 {
			return errors.New("the name of a global is no string: the file is damaged")
		}
	}
	g := pickleGlobal(module + "." + name)
	_, isStorage := storages[g]
	if !isStorage && dtypeGlobals[g] == 0 && callables[g] == nil {
		return fmt.Errorf("the pickle asks for %s, and only tensors, their storages and collections.OrderedDict are allowed: the file may be harmful; use a model in safetensors", quote(string(g)))
	}
	return u.push(g)
}

// persistent is ("storage", class, key, location, elements).
func persistent(v any) (pickleStorage, error) {
	id, _ := v.(pickleTuple)
	var s pickleStorage
	if len(id) != 5 || id[0] != any("storage") {
		return s, errors.New("a persistent id is no storage of torch: the file is damaged")
	}
	class, ok1 := id[1].(pickleGlobal)
	dtype, ok2 := storages[class]
	key, ok3 := id[2].(string)
	elements, ok4 := id[4].(int64)
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return s, errors.New("a storage of torch has another form than (\"storage\", class, key, location, elements): the file is damaged")
	}
	return pickleStorage{key, dtype, elements}, nil
}
