package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/kakuteihttp"
	"github.com/kakutei-go/kakutei/proxy"
)

// proxyConfig is the configuration file of the proxy, and the form that its
// flags are read into.
type proxyConfig struct {
	Listen    string        `yaml:"listen"`
	Upstream  string        `yaml:"upstream"`
	Store     string        `yaml:"store"`
	Admin     string        `yaml:"admin"`
	Retention time.Duration `yaml:"retention"`
	Drain     time.Duration `yaml:"drain"`

	JWTKey        string `yaml:"jwt_key"`
	JWTUnverified bool   `yaml:"jwt_unverified"`

	routeConfig `yaml:",inline"`
	Routes      []routeConfig `yaml:"routes"`
}

// routeConfig is what can be set for each route. What a route leaves out is as
// it is set for all.
type routeConfig struct {
	Method string `yaml:"method"`
	Path   string `yaml:"path"`

	Scope            *string        `yaml:"scope"`
	Recovery         *string        `yaml:"recovery"`
	Required         *bool          `yaml:"required"`
	Strict           *bool          `yaml:"strict"`
	Wait             *time.Duration `yaml:"wait"`
	Lease            *time.Duration `yaml:"lease"`
	Timeout          *time.Duration `yaml:"timeout"`
	MaxRequestBytes  *int64         `yaml:"max_request_bytes"`
	MaxResponseBytes *int64         `yaml:"max_response_bytes"`
	AuthorizeReplay  *string        `yaml:"authorize_replay"`
}

// defaults fills what neither flag nor file has set.
func (c *proxyConfig) defaults() {
	orElse(&c.Listen, "127.0.0.1:8080")
	orElse(&c.Store, "sqlite:kakutei.db")
	orElse(&c.Retention, 72*time.Hour)
	orElse(&c.Drain, 30*time.Second)
	c.over(routeConfig{
		Recovery: ptr("rerun"), Required: ptr(false), Strict: ptr(false), Wait: ptr(time.Duration(0)),
		Lease: ptr(30 * time.Second), Timeout: ptr(time.Minute), AuthorizeReplay: ptr(""),
		MaxRequestBytes: ptr(kakuteihttp.DefaultMaxBytes), MaxResponseBytes: ptr(kakuteihttp.DefaultMaxBytes),
	})
}

// over fills what r leaves out with what base has.
func (r *routeConfig) over(base routeConfig) {
	orElse(&r.Scope, base.Scope)
	orElse(&r.Recovery, base.Recovery)
	orElse(&r.Required, base.Required)
	orElse(&r.Strict, base.Strict)
	orElse(&r.Wait, base.Wait)
	orElse(&r.Lease, base.Lease)
	orElse(&r.Timeout, base.Timeout)
	orElse(&r.MaxRequestBytes, base.MaxRequestBytes)
	orElse(&r.MaxResponseBytes, base.MaxResponseBytes)
	orElse(&r.AuthorizeReplay, base.AuthorizeReplay)
}

func orElse[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

func ptr[T any](v T) *T { return &v }

// readConfig reads a configuration file. Unknown fields are errors: a setting
// that is misspelt must not silently be none.
func readConfig(path string) (proxyConfig, error) {
	var c proxyConfig
	content, err := os.ReadFile(path)
	if err != nil {
		return c, usagef("read the configuration: %v", err)
	}
	dec := yaml.NewDecoder(bytes.NewReader(content))
	dec.KnownFields(true)
	if err := dec.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return c, usagef("%s: %s", path, yamlText(err))
	}
	if err := dec.Decode(new(any)); !errors.Is(err, io.EOF) {
		return c, usagef("%s: there is more than one document in the file", path)
	}
	if c.Method != "" || c.Path != "" {
		return c, usagef("%s: method and path belong into an entry of routes", path)
	}
	for i, r := range c.Routes {
		if r.Path == "" {
			return c, usagef("%s: entry %d of routes has no path", path, i+1)
		}
	}
	return c, nil
}

// yamlText makes the decoder's errors, which name lines and Go types, speak of
// the file alone.
func yamlText(err error) string {
	s := err.Error()
	s = strings.ReplaceAll(s, "not found in type main.proxyConfig", "is unknown")
	s = strings.ReplaceAll(s, "not found in type main.routeConfig", "is unknown in a route")
	s = strings.TrimPrefix(s, "yaml: ")
	s = strings.TrimPrefix(s, "unmarshal errors:\n  ")
	return strings.ReplaceAll(s, "\n  ", "; ")
}

// route returns the settings of a route, complete.
func (r routeConfig) route(scopes proxy.ScopeOptions) (proxy.Route, error) {
	var out proxy.Route
	fail := func(err error) (proxy.Route, error) {
		if r.Path != "" {
			err = fmt.Errorf("route %s: %w", strings.TrimSpace(r.Method+" "+r.Path), err)
		}
		return out, fmt.Errorf("%w: %w", errUsage, err)
	}
	if r.Scope == nil {
		return fail(errors.New("the scope is not set: it says whose key a key is. Use header:NAME where a gateway in front sets that header, jwt:CLAIM, or single for a service without tenants"))
	}
	scope, err := proxy.ParseScope(*r.Scope, scopes)
	if errors.Is(err, kakutei.ErrInvalid) && strings.HasPrefix(*r.Scope, "jwt:") && scopes.JWTKey == nil {
		err = fmt.Errorf("%w (--jwt-key FILE or --jwt-unverified)", err)
	}
	if err != nil {
		return fail(err)
	}
	recovery, err := kakutei.ParseRecovery(*r.Recovery)
	if err != nil {
		return fail(err)
	}
	return proxy.Route{
		Method: strings.ToUpper(r.Method), Path: r.Path, Scope: scope, Recovery: recovery,
		Required: *r.Required, Strict: *r.Strict, Wait: *r.Wait, Lease: *r.Lease, Timeout: *r.Timeout,
		MaxRequestBytes: *r.MaxRequestBytes, MaxResponseBytes: *r.MaxResponseBytes, AuthorizeReplayURL: *r.AuthorizeReplay,
	}, nil
}
