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
	Listen    string    `yaml:"listen"`
	Upstream  string    `yaml:"upstream"`
	Store     string    `yaml:"store"`
	Admin     string    `yaml:"admin"`
	Retention *duration `yaml:"retention"`
	Drain     *duration `yaml:"drain"`

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

	Scope            *string   `yaml:"scope"`
	Recovery         *string   `yaml:"recovery"`
	Required         *bool     `yaml:"required"`
	Strict           *bool     `yaml:"strict"`
	Wait             *duration `yaml:"wait"`
	Lease            *duration `yaml:"lease"`
	Timeout          *duration `yaml:"timeout"`
	MaxRequestBytes  *int64    `yaml:"max_request_bytes"`
	MaxResponseBytes *int64    `yaml:"max_response_bytes"`
	AuthorizeReplay  *string   `yaml:"authorize_replay"`
}

// duration is a time.Duration that the file has with its unit. YAML's decoder
// alone would take 30 for 30 nanoseconds.
type duration time.Duration

// UnmarshalYAML implements yaml.Unmarshaler.
func (d *duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if n.Kind != yaml.ScalarNode || err != nil {
		return &yaml.TypeError{Errors: []string{fmt.Sprintf("line %d: %q is not a time with its unit, such as 30s or 1m30s", n.Line, n.Value)}}
	}
	*d = duration(v)
	return nil
}

// defaults fills what neither flag nor file has set.
func (c *proxyConfig) defaults() {
	orElse(&c.Listen, "127.0.0.1:8080")
	orElse(&c.Store, "sqlite:kakutei.db")
	orElse(&c.Retention, ptr(duration(72*time.Hour)))
	orElse(&c.Drain, ptr(duration(30*time.Second)))
	c.over(routeConfig{
		Recovery: ptr("rerun"), Required: ptr(false), Strict: ptr(false), Wait: ptr(duration(0)),
		Lease: ptr(duration(30 * time.Second)), Timeout: ptr(duration(time.Minute)), AuthorizeReplay: ptr(""),
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
	s := strings.TrimPrefix(strings.TrimPrefix(err.Error(), "yaml: "), "unmarshal errors:\n  ")
	return strings.NewReplacer(
		"not found in type main.proxyConfig", "is unknown",
		"not found in type main.routeConfig", "is unknown in a route",
		"cannot unmarshal !!", "a ",
		" into main.proxyConfig", " where the settings should be",
		" into []main.routeConfig", " where a list of routes should be",
		" into main.routeConfig", " where a route should be",
		" into int64", " where a number should be",
		" into bool", " where true or false should be",
		" into string", " where a text should be",
		"\n  ", "; ",
	).Replace(s)
}

// check reports settings that can never work, and those whose zero would mean
// the default somewhere below: who writes 0 does not mean that.
func (c proxyConfig) check() error {
	switch retention, drain := time.Duration(*c.Retention), time.Duration(*c.Drain); {
	case retention < time.Hour:
		return usagef("retention: %v is less than an hour", retention)
	case drain < 0:
		return usagef("drain: %v is below zero", drain)
	}
	return nil
}

func (r routeConfig) check() error {
	lease, timeout, wait := time.Duration(*r.Lease), time.Duration(*r.Timeout), time.Duration(*r.Wait)
	switch {
	case lease < kakutei.MinLease || lease > kakutei.MaxLease:
		return fmt.Errorf("lease: %v is not between %v and %v", lease, kakutei.MinLease, kakutei.MaxLease)
	case timeout <= 0:
		return fmt.Errorf("timeout: %v is not above zero", timeout)
	case wait < 0:
		return fmt.Errorf("wait: %v is below zero", wait)
	case *r.MaxRequestBytes <= 0:
		return fmt.Errorf("max-request-bytes: %d is not above zero", *r.MaxRequestBytes)
	case *r.MaxResponseBytes <= 0:
		return fmt.Errorf("max-response-bytes: %d is not above zero", *r.MaxResponseBytes)
	}
	return nil
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
		return fail(fmt.Errorf("recovery %q is unknown; choose rerun or hold", *r.Recovery))
	}
	if err := r.check(); err != nil {
		return fail(err)
	}
	return proxy.Route{
		Method: strings.ToUpper(r.Method), Path: r.Path, Scope: scope, Recovery: recovery,
		Required: *r.Required, Strict: *r.Strict,
		Wait: time.Duration(*r.Wait), Lease: time.Duration(*r.Lease), Timeout: time.Duration(*r.Timeout),
		MaxRequestBytes: *r.MaxRequestBytes, MaxResponseBytes: *r.MaxResponseBytes, AuthorizeReplayURL: *r.AuthorizeReplay,
	}, nil
}
