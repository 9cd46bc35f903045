// Package ordered does jobs in parallel, and passes them on in their order.
package ordered
