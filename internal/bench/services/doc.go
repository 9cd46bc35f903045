// Package services has the services of four studies, each with a client that uses it as a real user would.
package services
