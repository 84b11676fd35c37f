// Package v1alpha1 is the inference.outrider.dev/v1alpha1 API: the resources
// that users apply and the operator reconciles, with their validation.
//
// Everything generated from it is committed. test/generate.sh makes it again:
// deep copies and apply configurations beside the types, the CRD and the roles
// under config, and docs/api.md.
//
// +kubebuilder:object:generate=true
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package="applyconfiguration"
// +groupName=inference.outrider.dev
package v1alpha1
