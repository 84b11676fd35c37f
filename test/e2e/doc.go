// Package e2e tests Outrider on a real cluster, from the apply of a
// SpeculativeServer to the tokens that come back through its Service.
//
// The operator must be deployed and the engine's image be on the nodes; make
// test-e2e does both on the development cluster and runs
//
//	go test -exec hack/cluster/kin -tags e2e ./test/e2e/...
//
// The tests take the cluster from KUBECONFIG. They need to reach ClusterIPs and,
// to kill and to stop engines, containerd's ctr on the one node. Each test has a
// namespace of its own and deletes it.
package e2e
