package build

import (
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	networkingv1ac "k8s.io/client-go/applyconfigurations/networking/v1"
	policyv1ac "k8s.io/client-go/applyconfigurations/policy/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// Port is the port of the server's Service.
func Port(s *v1alpha1.SpeculativeServer) int32 {
	if svc := s.Spec.Service; svc != nil && svc.Port != nil {
		return *svc.Port
	}
	return HTTPPort
}

// Service is the Service of the server, of the server's name.
func Service(s *v1alpha1.SpeculativeServer) *corev1ac.ServiceApplyConfiguration {
	kind := corev1.ServiceTypeClusterIP
	svc := corev1ac.Service(s.Name, s.Namespace).
		WithLabels(Labels(s.Name)).
		WithOwnerReferences(Owner(s))
	if c := s.Spec.Service; c != nil {
		if c.Type != "" {
			kind = c.Type
		}
		if len(c.Annotations) > 0 {
			svc.WithAnnotations(texts(c.Annotations))
		}
	}
	port := corev1ac.ServicePort().
		WithName("http").WithProtocol(corev1.ProtocolTCP).
		WithPort(Port(s)).WithTargetPort(intstr.FromString("http"))
	if TLS(s) {
		port.WithAppProtocol("https")
	}
	return svc.WithSpec(corev1ac.ServiceSpec().
		WithType(kind).
		WithSelector(Served(s)).
		WithPorts(port))
}

// HeadlessName is the name of the headless Service.
func HeadlessName(server string) string { return server + "-pods" }

// Headless is the headless Service, by which each ready pod is found; nil when
// it is not asked for.
func Headless(s *v1alpha1.SpeculativeServer) *corev1ac.ServiceApplyConfiguration {
	if s.Spec.Service == nil || s.Spec.Service.Headless != v1alpha1.Enabled {
		return nil
	}
	port := func(name string, n int32) *corev1ac.ServicePortApplyConfiguration {
		return corev1ac.ServicePort().WithName(name).WithProtocol(corev1.ProtocolTCP).WithPort(n).WithTargetPort(intstr.FromString(name))
	}
	return corev1ac.Service(HeadlessName(s.Name), s.Namespace).
		WithLabels(Labels(s.Name)).
		WithOwnerReferences(Owner(s)).
		WithSpec(corev1ac.ServiceSpec().
			WithType(corev1.ServiceTypeClusterIP).WithClusterIP(corev1.ClusterIPNone).
			WithSelector(Served(s)).
			WithPorts(port("http", HTTPPort), port("admin", AdminPort)))
}

// Budget is the PodDisruptionBudget; nil when it is not asked for. At least one
// pod may always be evicted, and those that do not serve always: it slows drains
// and blocks none.
func Budget(s *v1alpha1.SpeculativeServer) *policyv1ac.PodDisruptionBudgetApplyConfiguration {
	d := s.Spec.Disruption
	if d == nil {
		return nil
	}
	most := int32(1)
	if d.MaxUnavailable != nil {
		most = *d.MaxUnavailable
	}
	return policyv1ac.PodDisruptionBudget(s.Name, s.Namespace).
		WithLabels(Labels(s.Name)).
		WithOwnerReferences(Owner(s)).
		WithSpec(policyv1ac.PodDisruptionBudgetSpec().
			WithMaxUnavailable(intstr.FromInt32(most)).
			WithUnhealthyPodEvictionPolicy(policyv1.AlwaysAllow).
			WithSelector(metav1ac.LabelSelector().WithMatchLabels(Served(s))))
}

// Network is the NetworkPolicy; nil when it is not asked for. The operator, whose
// labels Options give, must reach the admin port: without it no pod gets ready.
func Network(s *v1alpha1.SpeculativeServer, o Options) *networkingv1ac.NetworkPolicyApplyConfiguration {
	n := s.Spec.NetworkPolicy
	if n == nil {
		return nil
	}
	api := networkingv1ac.NetworkPolicyIngressRule().WithPorts(policyPort("http"))
	for _, c := range n.Clients {
		api.WithFrom(peer(c))
	}
	admin := operatorIn(o)
	for _, c := range n.Scrapers {
		admin.WithFrom(peer(c))
	}
	// The ranks of one server talk to one another on ports that the collectives choose.
	peers := networkingv1ac.NetworkPolicyIngressRule().WithFrom(
		networkingv1ac.NetworkPolicyPeer().WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(s.Name))))
	return networkingv1ac.NetworkPolicy(s.Name, s.Namespace).
		WithLabels(Labels(s.Name)).
		WithOwnerReferences(Owner(s)).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(s.Name))).
			WithPolicyTypes(networkingv1.PolicyTypeIngress).
			WithIngress(api, admin, peers))
}

// FetchNetwork is the NetworkPolicy of the pod that downloads into a claim; nil
// when none is asked for, or there is no such pod. The operator reads its progress.
func FetchNetwork(s *v1alpha1.SpeculativeServer, o Options) *networkingv1ac.NetworkPolicyApplyConfiguration {
	if s.Spec.NetworkPolicy == nil || !Fetches(s) {
		return nil
	}
	return networkingv1ac.NetworkPolicy(FetchName(s.Name), s.Namespace).
		WithLabels(Labels(s.Name)).
		WithOwnerReferences(Owner(s)).
		WithSpec(networkingv1ac.NetworkPolicySpec().
			WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(map[string]string{v1alpha1.LabelFetch: s.Name})).
			WithPolicyTypes(networkingv1.PolicyTypeIngress).
			WithIngress(operatorIn(o)))
}

// operatorIn lets the operator in on the admin port.
func operatorIn(o Options) *networkingv1ac.NetworkPolicyIngressRuleApplyConfiguration {
	operator := v1alpha1.Peer{PodLabels: map[string]v1alpha1.LabelValue{"app.kubernetes.io/name": "outrider", "app.kubernetes.io/component": "operator"}}
	if o.OperatorNamespace != "" {
		operator.NamespaceLabels = map[string]v1alpha1.LabelValue{corev1.LabelMetadataName: v1alpha1.LabelValue(o.OperatorNamespace)}
	}
	return networkingv1ac.NetworkPolicyIngressRule().WithPorts(policyPort("admin")).WithFrom(peer(operator))
}

func policyPort(name string) *networkingv1ac.NetworkPolicyPortApplyConfiguration {
	return networkingv1ac.NetworkPolicyPort().WithProtocol(corev1.ProtocolTCP).WithPort(intstr.FromString(name))
}

func peer(p v1alpha1.Peer) *networkingv1ac.NetworkPolicyPeerApplyConfiguration {
	ac := networkingv1ac.NetworkPolicyPeer()
	if len(p.NamespaceLabels) > 0 {
		ac.WithNamespaceSelector(metav1ac.LabelSelector().WithMatchLabels(texts(p.NamespaceLabels)))
	}
	if len(p.PodLabels) > 0 {
		ac.WithPodSelector(metav1ac.LabelSelector().WithMatchLabels(texts(p.PodLabels)))
	}
	return ac
}
