// Package engines measures moves of the containers of Docker, Podman, containerd and LXC, by Godwit and in
// these engines' own ways.
package engines
