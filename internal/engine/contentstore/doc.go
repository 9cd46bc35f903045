// Package contentstore uses a containerd's image store, through its API: for the engine containerd, and for
// a Docker whose images are in containerd. It knows neither: they choose the namespace and the names.
//
// An image there consists of documents: an index or a manifest, to which its name leads, then its
// configuration and its layers, each stored by the digest of its stored form, which may be compressed. An
// unpacked layer is a snapshot, which has the digest of its whole content.
package contentstore
