// Package render has the tests of the Helm chart: what it renders is decoded
// strictly, values that it does not know are refused, and what is generated is
// up to date.
package render
