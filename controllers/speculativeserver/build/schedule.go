package build

import (
	corev1 "k8s.io/api/core/v1"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// schedule says where the pods may run.
func schedule(spec *corev1ac.PodSpecApplyConfiguration, s *v1alpha1.SpeculativeServer) {
	at := s.Spec.Scheduling
	if at == nil {
		return
	}
	if len(at.NodeSelector) > 0 {
		spec.WithNodeSelector(texts(at.NodeSelector))
	}
	if len(at.NodeAffinity) > 0 {
		spec.WithAffinity(corev1ac.Affinity().WithNodeAffinity(nodeAffinity(at.NodeAffinity)))
	}
	for _, t := range at.Tolerations {
		ac := corev1ac.Toleration().WithOperator(t.Operator)
		if t.Key != "" {
			ac.WithKey(t.Key)
		}
		if t.Value != "" {
			ac.WithValue(t.Value)
		}
		if t.Effect != "" {
			ac.WithEffect(t.Effect)
		}
		ac.TolerationSeconds = t.TolerationSeconds
		spec.WithTolerations(ac)
	}
	for _, t := range at.TopologySpread {
		skew, when := int32(1), corev1.ScheduleAnyway
		if t.MaxSkew != nil {
			skew = *t.MaxSkew
		}
		if t.WhenUnsatisfiable != "" {
			when = t.WhenUnsatisfiable
		}
		spec.WithTopologySpreadConstraints(corev1ac.TopologySpreadConstraint().
			WithTopologyKey(t.TopologyKey).WithMaxSkew(skew).WithWhenUnsatisfiable(when).
			WithLabelSelector(metav1ac.LabelSelector().WithMatchLabels(Selector(s.Name))))
	}
	if at.PriorityClassName != "" {
		spec.WithPriorityClassName(at.PriorityClassName)
	}
	if at.RuntimeClassName != "" {
		spec.WithRuntimeClassName(at.RuntimeClassName)
	}
	if at.SchedulerName != "" {
		spec.WithSchedulerName(at.SchedulerName)
	}
}

// nodeAffinity joins the rules: a node must meet all that are required, in one
// term, since terms are alternatives.
func nodeAffinity(rules []v1alpha1.NodeRule) *corev1ac.NodeAffinityApplyConfiguration {
	a, required := corev1ac.NodeAffinity(), corev1ac.NodeSelectorTerm()
	for _, r := range rules {
		match := corev1ac.NodeSelectorRequirement().WithKey(r.Key).WithOperator(r.Operator).WithValues(r.Values...)
		if r.Weight == nil {
			required.WithMatchExpressions(match)
			continue
		}
		a.WithPreferredDuringSchedulingIgnoredDuringExecution(corev1ac.PreferredSchedulingTerm().
			WithWeight(*r.Weight).WithPreference(corev1ac.NodeSelectorTerm().WithMatchExpressions(match)))
	}
	if len(required.MatchExpressions) > 0 {
		a.WithRequiredDuringSchedulingIgnoredDuringExecution(corev1ac.NodeSelector().WithNodeSelectorTerms(required))
	}
	return a
}
