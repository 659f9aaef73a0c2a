// Package proxy is a reverse proxy that gives any HTTP API idempotency keys,
// whatever the API is written in. It protects POST and PATCH requests that carry
// a key; everything else passes through untouched.
package proxy
