// Package docker moves containers of Docker. It implements, with Docker's API, the operations that package
// oci needs.
package docker
