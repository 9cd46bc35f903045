// Package compare finds where a tree differs from its manifest: names that must be looked at again,
// directories that may have moved, and files that no later change can escape (settled). It sends nothing.
package compare
