// Package apiserver tests the API and the operator against a real kube-apiserver
// and etcd, without nodes: the tests play the kubelet by writing pod statuses.
//
// Run them with go test -tags apiserver ./test/apiserver/... and with
// KUBEBUILDER_ASSETS naming a folder with etcd, kube-apiserver and kubectl
// (hack/cluster makes one). Nothing is downloaded.
package apiserver
