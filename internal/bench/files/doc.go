// Package files measures how a container's files and image get to another node, beside rsync and Podman's own
// ways.
package files
