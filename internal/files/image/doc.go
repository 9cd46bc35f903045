// Package image keeps images and their layers in a node's state directory.
//
//	images/sha256/ID/config.json      an image's configuration, as it came: its digest is the image's ID
//	images/sha256/ID/origin.json      which registry it was pulled from, if it was
//	images/names.json                 names of images
//	layers/sha256/DIFFID/fs           a layer unpacked, with whiteouts as overlayfs has them
//	layers/sha256/DIFFID/layer.tar.zst  the same layer as it came, compressed
//	layers/sha256/DIFFID/layer.json   how large it is
//
// A layer is known by its DiffID, the digest of its tar archive, on every node alike. The archive
// is kept beside the unpacked tree, because only it can prove to another node that what it gets is
// the layer: a tree packed again has another digest, and tar-split's way of recording the
// difference trusts that nobody has touched the tree since. It costs about a third of the unpacked
// size, and sending a layer then takes no processor time.
//
// Everything appears whole or not at all: it is made under a temporary name, synced and renamed.
// Archives are not trusted. The package knows no container, no engine and no peer.
package image
