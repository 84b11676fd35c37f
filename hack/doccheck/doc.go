// Package doccheck has tests of the documentation: its links lead somewhere, and
// what a status can say is explained.
package doccheck
