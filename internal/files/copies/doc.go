// Package copies makes exact copies of directory trees, in rounds: a Source sends differences while a
// container runs, and a Mirror at the other end makes the trees and changes them. Both ends are here, and
// tested together. Packages below files have the parts: the codec (records), what the source knows about the
// mirror (manifest), the search for differences (compare), and single files (fsys).
//
// The stream is untrusted: sizes and counts are bounded, and no path leaves the directory that it was given.
package copies
