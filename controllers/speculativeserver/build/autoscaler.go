package build

import (
	autoscalingv2 "k8s.io/api/autoscaling/v2"
	"k8s.io/apimachinery/pkg/api/resource"
	autoscalingv2ac "k8s.io/client-go/applyconfigurations/autoscaling/v2"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"

	"github.com/outrider-dev/outrider/api/v1alpha1"
)

// defaultMetrics: the running requests are half of what an engine runs at once by default,
// 32 on CPUs and 128 on GPUs, so what comes while another replica loads has room.
func defaultMetrics(s *v1alpha1.SpeculativeServer) []v1alpha1.AutoscalingMetric {
	running := resource.MustParse("16")
	if usesGPUs(s) {
		running = resource.MustParse("64")
	}
	return []v1alpha1.AutoscalingMetric{
		{Name: "outrider_requests_running", AverageValue: running},
		{Name: "outrider_requests_waiting", AverageValue: resource.MustParse("1")},
	}
}

// Autoscaler is the HorizontalPodAutoscaler; nil when it is not asked for. It is
// all that writes spec.replicas.
func Autoscaler(s *v1alpha1.SpeculativeServer) *autoscalingv2ac.HorizontalPodAutoscalerApplyConfiguration {
	a := s.Spec.Autoscaling
	if a == nil {
		return nil
	}
	fewest, delay, metrics := int32(1), int32(900), a.Metrics
	if a.MinReplicas != nil {
		fewest = *a.MinReplicas
	}
	if a.ScaleDownDelaySeconds != nil {
		delay = *a.ScaleDownDelaySeconds
	}
	if len(metrics) == 0 {
		metrics = defaultMetrics(s)
	}
	spec := autoscalingv2ac.HorizontalPodAutoscalerSpec().
		WithScaleTargetRef(autoscalingv2ac.CrossVersionObjectReference().
			WithAPIVersion(v1alpha1.SchemeGroupVersion.String()).WithKind("SpeculativeServer").WithName(s.Name)).
		WithMinReplicas(fewest).WithMaxReplicas(a.MaxReplicas).
		WithBehavior(autoscalingv2ac.HorizontalPodAutoscalerBehavior().
			WithScaleUp(scaling(30, 60)).
			WithScaleDown(scaling(delay, 300)))
	for i := range metrics {
		spec.WithMetrics(metricSpec(s, &metrics[i]))
	}
	return autoscalingv2ac.HorizontalPodAutoscaler(s.Name, s.Namespace).
		WithLabels(Labels(s.Name)).
		WithOwnerReferences(Owner(s)).
		WithSpec(spec)
}

// scaling is one replica a period, after a delay; both in seconds.
func scaling(delay, period int32) *autoscalingv2ac.HPAScalingRulesApplyConfiguration {
	return autoscalingv2ac.HPAScalingRules().
		WithStabilizationWindowSeconds(delay).
		WithPolicies(autoscalingv2ac.HPAScalingPolicy().
			WithType(autoscalingv2.PodsScalingPolicy).WithValue(1).WithPeriodSeconds(period))
}

func metricSpec(s *v1alpha1.SpeculativeServer, m *v1alpha1.AutoscalingMetric) *autoscalingv2ac.MetricSpecApplyConfiguration {
	name := autoscalingv2ac.MetricIdentifier().WithName(m.Name)
	target := autoscalingv2ac.MetricTarget().WithType(autoscalingv2.AverageValueMetricType).WithAverageValue(m.AverageValue)
	if m.Source != "External" {
		return autoscalingv2ac.MetricSpec().WithType(autoscalingv2.PodsMetricSourceType).
			WithPods(autoscalingv2ac.PodsMetricSource().WithMetric(name).WithTarget(target))
	}
	labels := texts(m.MatchLabels)
	if len(labels) == 0 {
		labels = map[string]string{"server": s.Name} // as the PodMonitor has it; the API adds the namespace
	}
	return autoscalingv2ac.MetricSpec().WithType(autoscalingv2.ExternalMetricSourceType).
		WithExternal(autoscalingv2ac.ExternalMetricSource().
			WithMetric(name.WithSelector(metav1ac.LabelSelector().WithMatchLabels(labels))).WithTarget(target))
}
