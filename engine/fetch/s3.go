package fetch

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"

	"github.com/outrider-dev/outrider/engine/fault"
)

// s3Scheme begins the reference of a folder of an object store: s3://BUCKET/PREFIX.
const s3Scheme = "s3://"

var s3Bucket = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)

// s3 is a folder of an object store.
type s3 struct {
	endpoint, bucket string
	prefix           string // ends in "/", or is empty
	client           minio.Core
}

// newS3 takes address, region and credentials from the variables that AWS's own
// clients read.
func newS3(ref string, getenv func(string) string) (*s3, error) {
	bucket, prefix, _ := strings.Cut(strings.TrimPrefix(ref, s3Scheme), "/")
	if prefix = strings.Trim(prefix, "/"); prefix != "" {
		prefix += "/"
	}
	if !s3Bucket.MatchString(bucket) || len(prefix) > 1024 {
		return nil, fault.Errorf(fault.InvalidConfig, "%.300q is no folder of an object store: give s3://BUCKET/PREFIX", ref)
	}
	first := func(names ...string) string {
		for _, name := range names {
			if v := getenv(name); v != "" {
				return v
			}
		}
		return ""
	}
	endpoint := first("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
	if endpoint == "" {
		endpoint = "https://s3.amazonaws.com"
	}
	at, err := url.Parse(endpoint)
	if err != nil || at.Scheme != "https" && at.Scheme != "http" || at.Host == "" || strings.Trim(at.Path, "/") != "" || at.User != nil {
		return nil, fault.Errorf(fault.InvalidConfig, "AWS_ENDPOINT_URL is no address of an object store: give one like https://minio.example.com:9000")
	}
	providers := []credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}}
	// A metadata service is asked only where the platform says that there is one:
	// elsewhere the question hangs.
	if first("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") != "" {
		providers = append(providers, &credentials.IAM{})
	}
	client, err := minio.NewCore(at.Host, &minio.Options{
		Creds: credentials.NewChainCredentials(providers), Secure: at.Scheme == "https", Transport: newTransport(),
		Region: first("AWS_REGION", "AWS_DEFAULT_REGION"), MaxRetries: 1,
	})
	if err != nil {
		return nil, fault.Errorf(fault.InvalidConfig, "%s: %w", ref, err)
	}
	return &s3{endpoint: at.Host, bucket: bucket, prefix: prefix, client: *client}, nil
}

func (s *s3) key() string {
	return "s3/" + plain(s.endpoint) + "/" + plain(s.bucket+"/"+s.prefix)
}

func (s *s3) pinned() string { return "" }

func (s *s3) ref() string { return "latest" }

// list names a version by all that the store says of the objects.
func (s *s3) list(ctx context.Context) (listing, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the listing when it is left early
	var l listing
	var lines []string
	for o := range s.client.Client.ListObjects(ctx, s.bucket, minio.ListObjectsOptions{Prefix: s.prefix, Recursive: true}) {
		if o.Err != nil {
			return listing{}, s.refused(o.Err)
		}
		if len(l.files) > maxFiles {
			break // check refuses it
		}
		name := strings.TrimPrefix(o.Key, s.prefix)
		lines = append(lines, fmt.Sprintf("%q %d %q\n", name, o.Size, o.ETag))
		l.files = append(l.files, file{name: name, size: o.Size, tag: strings.Trim(o.ETag, `"`)})
	}
	if err := ctx.Err(); err != nil {
		return listing{}, err
	}
	if len(l.files) == 0 {
		return listing{}, fault.Errorf(fault.ModelNotFound, "the bucket %s of %s has nothing under %q: check the prefix", s.bucket, s.endpoint, s.prefix)
	}
	slices.Sort(lines) // not every store lists in order
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	l.version = hex.EncodeToString(sum[:20])
	return l, nil
}

func (s *s3) open(ctx context.Context, f file, offset int64) (io.ReadCloser, int64, error) {
	var opts minio.GetObjectOptions
	if f.tag != "" {
		if err := opts.SetMatchETag(f.tag); err != nil {
			return nil, 0, err
		}
	}
	if offset > 0 {
		if err := opts.SetRange(offset, 0); err != nil {
			return nil, 0, err
		}
	}
	body, _, header, err := s.client.GetObject(ctx, s.bucket, s.prefix+f.name, opts)
	if err != nil {
		return nil, 0, s.refused(err)
	}
	resp := &http.Response{StatusCode: http.StatusOK, Header: header, ContentLength: -1}
	if header.Get("Content-Range") != "" {
		resp.StatusCode = http.StatusPartialContent
	} else if n, err := strconv.ParseInt(header.Get("Content-Length"), 10, 64); err == nil {
		resp.ContentLength = n
	}
	start, err := rangeStart(resp, f)
	if err != nil {
		_ = body.Close()
		return nil, 0, err
	}
	return body, start, nil
}

// refused gives an answer of the store its reason, and says what to do.
func (s *s3) refused(err error) error {
	r := minio.ToErrorResponse(err)
	where := s.endpoint + "/" + s.bucket + "/" + s.prefix
	switch r.StatusCode {
	case http.StatusUnauthorized, http.StatusForbidden:
		return fault.Errorf(fault.Unauthorized, "%s answers %s: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY must be of somebody who may list and read it", where, r.Code)
	case http.StatusNotFound:
		return fault.Errorf(fault.ModelNotFound, "%s answers %s: check bucket, prefix and AWS_ENDPOINT_URL", where, r.Code)
	case http.StatusPreconditionFailed:
		return fault.Errorf(fault.FetchFailed, "%s changed while it was downloaded: start again once it is whole", where)
	case http.StatusRequestedRangeNotSatisfiable:
		return errRange
	case http.StatusBadRequest, http.StatusMovedPermanently:
		return fault.Errorf(fault.FetchFailed, "%s answers %s: check AWS_REGION and AWS_ENDPOINT_URL", where, r.Code)
	}
	return quiet(err)
}
