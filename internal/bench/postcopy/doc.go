// Package postcopy measures the cost of post-copy: it moves programs before their memory, and asks them how
// long they waited for pages.
package postcopy
