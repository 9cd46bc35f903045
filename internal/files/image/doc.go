// Package image keeps images and their layers in a node's state directory.
//
//	images/sha256/ID/config.json      an image's configuration, as it came: its digest is the image's ID
//	images/sha256/ID/origin.json      which registry it was pulled from, if it was
//	images/names.json                 names of images
//	layers/sha256/DIFFID/fs           a layer unpacked, with whiteouts as overlayfs has them
//	layers/sha256/DIFFID/layer.tar.zst  the same layer as it came, compressed
//	layers/sha256/DIFFID/layer.json   how large it is
//
// A layer is identified on every node by its DiffID, the digest of its tar archive. The archive is kept
// beside the unpacked tree, because only the archive proves to another node that it gets the layer: a tree
// that is packed again has another digest, and tar-split's way of recording the difference relies on nobody
// having touched the tree since. The archive takes about a third of the unpacked size, and sending a layer
// then takes no processor time.
//
// Everything appears complete or not at all: it is made under a temporary name, synced and renamed.
// Archives are not trusted. The package knows no container, no engine and no peer.
package image
