// Package files measures how fast a container's files and image reach another node, compared with rsync and
// Podman's own ways.
package files
