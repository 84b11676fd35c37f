// Package doccheck has tests of the documentation: its links lead somewhere,
// the resources that it shows have only fields that there are, and what a status
// can say is explained.
package doccheck
