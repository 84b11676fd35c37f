package speculativeserver

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// promises are what other operators of model servers and of GPUs have been
// complained of for, and the tests that would fail if this one did the same.
var promises = []struct{ promise, tests string }{
	{"a large load is not killed, and a small one not kept waiting: progress extends the budget", "decide TestLoadThatMoves, decide TestHungLoad"},
	{"a rollout without a spare GPU goes on: no surge unless asked for, the stale and not-ready first", "rollout TestNextBounds, decide TestRollouts, test/e2e TestDevices"},
	{"pods that terminate hold their devices: they are counted before others are made", "decide TestRolloutInvariants, test/e2e TestDevices"},
	{"a pod stuck in Terminating is reported, and after a limit worked around", "decide TestRollouts, decide TestClassify"},
	{"a service is not Ready while a rank is dead", "decide TestGates, test/apiserver TestGateLost, test/e2e TestGateLost, test/e2e TestFaultGeneration, test/e2e TestGroup"},
	{"capacity, pulling, loading, stalled and crashed are told apart", "decide TestClassify, failure TestWaits, failure TestEnds, test/e2e TestNoCapacity, test/e2e TestNoImage, test/e2e TestSlowLoad"},
	{"an engine that answers health while its model does not move is found out", "decide TestUnverifiedForLong, poll TestDeepProbe, test/e2e TestStopped, test/e2e TestFaultGeneration"},
	{"a server that crash-loops is not Ready", "decide TestCrashLoop, decide TestDegradedUntilServing"},
	{"a group of several nodes that crash-loops waits and ends as a pod does, and keeps no rollout from mending it", "decide TestGroupBackOff, decide TestGroupStaysFailed, decide TestGroupRolloutsEnd, test/apiserver TestGroupBudget, test/e2e TestGroupBudget, test/e2e TestGroupBadSpec"},
	{"shared memory is sized from the ranks and counted in the limit", "build TestSharedMemory, build TestPodGolden"},
	{"a download goes on where it was, is made once for all pods, checked, and marked when whole", "engine/fetch TestHubResumes, engine/fetch TestHubTwoPods, engine/fetch TestHubDamage, test/apiserver TestFetch, decide TestFetch, test/e2e TestModelCache"},
	{"a claim that blocks a rollout is refused before there are pods", "decide TestClaimConflict, test/apiserver TestClaimConflict, test/apiserver TestSourcesValidation"},
	{"a gated model's missing token has a reason of its own", "decide TestSourceReasons, test/apiserver TestFetch, engine/fetch TestHubRefusals"},
	{"observedGeneration is the server's own, on every condition", "decide TestConditions, test/apiserver TestToReady"},
	{"status is computed from the pods each time: no counter drifts", "decide TestRestartOfTheOperator, decide TestConditions"},
	{"the definition of the resource stays small", "test/apiserver TestCRDSize"},
	{"kinds that are not installed stop nothing", "test/apiserver TestOptional, test/apiserver TestAround"},
	{"deletion hangs on no finalizer", "test/apiserver TestNoFinalizers, test/e2e TestDeletedWhileLoading"},
	{"streams are not cut: drain and grace period follow from one setting", "build TestGraceFollowsDrain, test/e2e TestScaleAndRollout, test/e2e TestFaultDrain"},
	{"a bad GPU has a reason, and its node is avoided", "failure TestEnds, decide TestAvoidsBadNode, build TestPodAvoids"},
	{"a NetworkPolicy lets peers, scrapes and the operator in", "build TestEverythingGolden, build TestNothingAround, test/e2e TestModelCache"},
	{"an operator that stops hands over at once", "test/apiserver TestLeaseReleased"},
	{"an operator's metrics are for those who may read them, and namespaces that it does not watch are left alone", "test/apiserver TestProgram"},
	{"a server stored before a rule came can be labelled, reported on and put right", "test/apiserver TestRatcheting"},
	{"replicas are an autoscaler's alone where there is one", "test/apiserver TestAutoscaling, test/e2e TestAutoscaled"},
	{"drafts follow the load, with hysteresis", "adapt TestSimulations, decide TestAutoFollowsLoad, test/apiserver TestAdaptation"},
	{"a spec whose pods are refused takes down none that serve, and is refused itself where that can be known", "test/apiserver TestRefusedRolloutKeepsPods, test/apiserver TestTakenMeansMade, decide TestHeld"},
	{"a phase says whether a server serves, whatever else is wrong", "decide TestServingRefused, decide TestHeld, test/apiserver TestNameTakenWhileServing"},
	{"a claim that is taken away while it is used is not lost, and files are looked for in the claim that has them", "test/apiserver TestCacheTemplateLeftOut, test/apiserver TestClaimFromBefore, test/apiserver TestImmutable"},
	{"a draft that fails does not take the service down", "decide TestBadDraft, decide TestFetchWithoutDraft, test/e2e TestWrongDraft"},
}

// TestPromises: each promise has tests that are there.
func TestPromises(t *testing.T) {
	root := filepath.Join("..", "..")
	for _, p := range promises {
		for test := range strings.SplitSeq(p.tests, ", ") {
			dir, name, _ := strings.Cut(test, " ")
			folder := dir
			if strings.Contains(dir, "/") {
				folder = filepath.Join(root, dir)
			}
			files, err := filepath.Glob(filepath.Join(folder, "*_test.go"))
			if err != nil {
				t.Fatal(err)
			}
			found := false
			for _, file := range files {
				b, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				found = found || regexp.MustCompile(`(?m)^func `+name+`\(t \*testing\.T\)`).Match(b)
			}
			if !found {
				t.Errorf("%s: there is no %s in %s", p.promise, name, folder)
			}
		}
	}
}
