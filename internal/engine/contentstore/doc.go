// Package contentstore is how a containerd keeps images, by its API: for the engine containerd, and
// for a Docker that has its containerd keep them. It knows neither: in which namespace and under
// which name something is made they say.
//
// An image there is documents: an index or a manifest, to which its name leads, then its
// configuration and its layers, each by the digest of how it is kept, which may be compressed. What
// is unpacked of a layer is a snapshot, which has the digest of all that is in it.
package contentstore
