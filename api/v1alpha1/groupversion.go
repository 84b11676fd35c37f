package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

var (
	// SchemeGroupVersion is the group and version of the types in this package.
	SchemeGroupVersion = schema.GroupVersion{Group: "inference.outrider.dev", Version: "v1alpha1"}

	// GroupVersion is SchemeGroupVersion under the name that controller-runtime's users expect.
	GroupVersion = SchemeGroupVersion

	// SchemeBuilder collects the functions that register this package's types.
	SchemeBuilder = runtime.NewSchemeBuilder(addKnownTypes)

	// AddToScheme registers this package's types with a scheme.
	AddToScheme = SchemeBuilder.AddToScheme
)

func addKnownTypes(s *runtime.Scheme) error {
	s.AddKnownTypes(SchemeGroupVersion, &SpeculativeServer{}, &SpeculativeServerList{})
	metav1.AddToGroupVersion(s, SchemeGroupVersion)
	return nil
}
