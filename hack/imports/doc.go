// Package imports holds the test that imports run downward only, as the
// design's layers have it.
package imports
