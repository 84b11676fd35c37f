// Package speculativeserver reconciles SpeculativeServers: gather what there is,
// decide what it means and what to do (package decide), build what is missing
// (package build), apply it, write the status. A reconcile that finds nothing
// new writes nothing.
package speculativeserver

// What the operator may do, and why.
//
// It reads servers and writes their status, and may set owner references that
// block deletion:
// +kubebuilder:rbac:groups=inference.outrider.dev,resources=speculativeservers,verbs=list;watch
// +kubebuilder:rbac:groups=inference.outrider.dev,resources=speculativeservers/status,verbs=patch
// +kubebuilder:rbac:groups=inference.outrider.dev,resources=speculativeservers/finalizers,verbs=update
//
// It makes and deletes their pods, and sets the readiness gate. Of pods that LeaderWorkerSets' controller makes it removes
// the scheduling gate, for which Kubernetes has no narrower right than to patch pods:
// +kubebuilder:rbac:groups=core,resources=pods,verbs=get;list;watch;create;delete;patch
// +kubebuilder:rbac:groups=core,resources=pods/status,verbs=patch
//
// It applies their Services, budgets, policies and autoscalers, and deletes those that are not asked for any more; the garbage
// collector deletes the rest:
// +kubebuilder:rbac:groups=core,resources=services,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=policy,resources=poddisruptionbudgets,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=networking.k8s.io,resources=networkpolicies,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=autoscaling,resources=horizontalpodautoscalers,verbs=get;list;watch;create;patch;delete
//
// It applies LeaderWorkerSets, where there is such a kind, for servers whose replicas have several nodes; the garbage
// collector deletes them:
// +kubebuilder:rbac:groups=leaderworkerset.x-k8s.io,resources=leaderworkersets,verbs=get;create;patch
//
// The same of PodMonitors, InferencePools and HTTPRoutes, where there are such kinds, without watching them:
// +kubebuilder:rbac:groups=monitoring.coreos.com,resources=podmonitors,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=inference.networking.k8s.io,resources=inferencepools,verbs=get;create;patch;delete
// +kubebuilder:rbac:groups=gateway.networking.k8s.io,resources=httproutes,verbs=get;create;patch;delete
//
// It makes and deletes the Jobs that download models, and follows them:
// +kubebuilder:rbac:groups=batch,resources=jobs,verbs=list;watch;create;delete
//
// It looks at the access modes of a claim before it makes pods that mount it, and applies the claims that it is asked
// to make for downloads:
// +kubebuilder:rbac:groups=core,resources=persistentvolumeclaims,verbs=get;list;watch;create;patch;delete
//
// It makes a Secret with a token for each server's admin ports, and one for its nodes to know each other by, and reads
// these:
// +kubebuilder:rbac:groups=core,resources=secrets,verbs=get;create
//
// It reads the kubelet's complaints about volumes and reports transitions:
// +kubebuilder:rbac:groups=core,resources=events,verbs=list;watch
// +kubebuilder:rbac:groups=events.k8s.io,resources=events,verbs=create;patch
//
// It asks the API server who may read its own metrics:
// +kubebuilder:rbac:groups=authentication.k8s.io,resources=tokenreviews,verbs=create
// +kubebuilder:rbac:groups=authorization.k8s.io,resources=subjectaccessreviews,verbs=create
//
// One replica of it leads, and says so in an event:
// +kubebuilder:rbac:groups=coordination.k8s.io,namespace=outrider-system,resources=leases,verbs=get;create;update
// +kubebuilder:rbac:groups=core,namespace=outrider-system,resources=events,verbs=create;patch
