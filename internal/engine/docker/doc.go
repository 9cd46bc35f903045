// Package docker moves containers that Docker runs: it is what package oci asks Docker for, by its API.
package docker
