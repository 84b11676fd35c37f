module github.com/outrider-dev/outrider/hack/cluster/images

go 1.26.0
