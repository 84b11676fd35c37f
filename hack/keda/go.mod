// Pins the version of KEDA whose CRD and triggers the samples are checked against
// (hack/chart/render). Nothing is built from it.
module github.com/outrider-dev/outrider/hack/keda

go 1.26.0

require github.com/kedacore/keda/v2 v2.21.0
