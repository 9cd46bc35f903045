// Package kerneltest helps the tests of package kernel and of the packages below it.
package kerneltest
