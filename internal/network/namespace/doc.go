// Package namespace makes, keeps and enters network namespaces, and sets kernel parameters in them. It knows
// neither containers nor addresses.
package namespace
