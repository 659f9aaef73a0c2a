package proxy_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/golang-jwt/jwt/v5"

	"github.com/kakutei-go/kakutei"
	"github.com/kakutei-go/kakutei/internal/assert"
	"github.com/kakutei-go/kakutei/proxy"
)

// A scope that is not there, not one, or not text is refused, and nothing runs.
func TestHeaderScope(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{route: proxy.Route{Scope: scopeOf("header:x-ACCOUNT-id")}})
	const head = "POST /charges HTTP/1.1\r\nHost: api\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n"
	for _, lines := range []string{
		"", "X-Account-Id:\r\n", "X-Account-Id:   \r\n", "X-Account-Id: acme\r\nX-Account-Id: acme\r\n", "X-Account-Id: acme\r\nx-account-id: other\r\n",
		"X-Account-Id: acme\r\nX-Account-Id:\r\n", "X-Account-Id: \xff\r\n", "X-Account-Id: a\tb\r\n", "X-Account-Id: " + strings.Repeat("a", 256) + "\r\n",
	} {
		a := sendRaw(t, f.addr, head+lines+"\r\n")
		if !assert.Equal(t, a.status, 400, fmt.Sprintf("status for %q", lines)) {
			continue
		}
		wantProblem(t, a, 400, "scope-missing")
	}
	up.wantRuns(t, 0)
	wantFirst(t, sendRaw(t, f.addr, head+"x-account-id: acme\r\n\r\n"), 201, "run 1")
	wantFirst(t, sendRaw(t, f.addr, head+"X-Account-Id: "+strings.Repeat("a", 255)+"\r\n\r\n"), 201, "run 2")
	assert.Equal(t, f.status("k"), kakutei.StatusSucceeded, "record of acme")
	assert.Equal(t, up.all()[0].header.Get("X-Account-Id"), "acme", "the header at the upstream")
}

func TestSingleScope(t *testing.T) {
	t.Parallel()
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{route: proxy.Route{Scope: scopeOf("single")}})
	wantFirst(t, f.send(call{key: "k", account: "a"}), 201, "run 1")
	wantReplay(t, f.send(call{key: "k", account: "b"}), 201, "run 1")
}

func TestParseScope(t *testing.T) {
	t.Parallel()
	secret := proxy.ScopeOptions{JWTKey: []byte(strings.Repeat("s", 32))}
	for _, s := range []string{"", "header", "header:", "jwt", "jwt:", "single:", "single:x", "Single", "cookie:id", "X-Account-Id", " header:X", "header:X Y", "header:X\n", "header:caf\u00e9", "header:a:b", "header:host"} {
		_, err := proxy.ParseScope(s, secret)
		assert.ErrorIs(t, err, kakutei.ErrInvalid)
		assert.True(t, err == nil || contains(err.Error(), fmt.Sprintf("%q", s)), "the error does not name %q: %v", s, err)
	}
	_, err := proxy.ParseScope("jwt:sub", proxy.ScopeOptions{})
	assert.ErrorIs(t, err, kakutei.ErrInvalid)
	// To verify and not to verify cannot both be meant.
	_, err = proxy.ParseScope("jwt:sub", proxy.ScopeOptions{JWTKey: secret.JWTKey, JWTUnverified: true})
	assert.ErrorIs(t, err, kakutei.ErrInvalid)
	_, err = proxy.ParseScope("jwt:sub", proxy.ScopeOptions{JWTKey: "a string"})
	assert.ErrorIs(t, err, kakutei.ErrInvalid)
}

// keys are those of an issuer of tokens.
type keys struct {
	rsa   *rsa.PrivateKey
	ecdsa *ecdsa.PrivateKey
	ed    ed25519.PrivateKey
}

func newKeys(t testing.TB) keys {
	t.Helper()
	var k keys
	var err error
	if k.rsa, err = rsa.GenerateKey(rand.Reader, 2048); err != nil {
		t.Fatal(err)
	}
	if k.ecdsa, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	if _, k.ed, err = ed25519.GenerateKey(rand.Reader); err != nil {
		t.Fatal(err)
	}
	return k
}

func publicPEM(t testing.TB, key crypto.PublicKey) []byte {
	t.Helper()
	der, err := x509.MarshalPKIXPublicKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
}

func token(t testing.TB, method jwt.SigningMethod, key any, claims jwt.MapClaims) string {
	t.Helper()
	s, err := jwt.NewWithClaims(method, claims).SignedString(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func bearer(c call, token string) call { return c.with("Authorization", "Bearer "+token) }

// jwtFront verifies tokens with what is in a key file.
func jwtFront(t testing.TB, upstream string, keyFile []byte, claim string) *front {
	t.Helper()
	key, err := proxy.ParseJWTKey(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	scope, err := proxy.ParseScope("jwt:"+claim, proxy.ScopeOptions{JWTKey: key})
	if err != nil {
		t.Fatal(err)
	}
	return newFront(t, upstream, setup{route: proxy.Route{Scope: scope}})
}

// Every kind of key verifies its own tokens, and no others.
func TestTokens(t *testing.T) {
	t.Parallel()
	k, stranger := newKeys(t), newKeys(t)
	secret := []byte(strings.Repeat("s", 32))
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, &k.rsa.PublicKey, k.rsa)
	if err != nil {
		t.Fatal(err)
	}
	up := newUpstream(t, nil)
	in := func(d time.Duration) int64 { return time.Now().Add(d).Unix() }
	ok := jwt.MapClaims{"sub": "acme", "exp": in(time.Hour)}
	for _, tt := range []struct {
		name      string
		file      []byte
		good, bad []string
	}{
		{
			"RSA", publicPEM(t, &k.rsa.PublicKey),
			[]string{token(t, jwt.SigningMethodRS256, k.rsa, ok), token(t, jwt.SigningMethodPS512, k.rsa, ok), token(t, jwt.SigningMethodRS256, k.rsa, jwt.MapClaims{"sub": "acme"})},
			[]string{
				token(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, ok),
				// The public key taken for the secret of an HMAC, in each form that it has.
				token(t, jwt.SigningMethodHS256, publicPEM(t, &k.rsa.PublicKey), ok),
				token(t, jwt.SigningMethodHS256, []byte(strings.TrimSpace(string(publicPEM(t, &k.rsa.PublicKey)))), ok),
				token(t, jwt.SigningMethodHS256, x509.MarshalPKCS1PublicKey(&k.rsa.PublicKey), ok),
				token(t, jwt.SigningMethodRS256, stranger.rsa, ok),
				token(t, jwt.SigningMethodES256, k.ecdsa, ok),
				token(t, jwt.SigningMethodRS256, k.rsa, jwt.MapClaims{"sub": "acme", "exp": in(-time.Minute)}),
				token(t, jwt.SigningMethodRS256, k.rsa, jwt.MapClaims{"sub": "acme", "nbf": in(time.Hour)}),
				token(t, jwt.SigningMethodRS256, k.rsa, jwt.MapClaims{"sub": "acme", "exp": "soon"}),
			},
		},
		{"certificate", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert}), []string{token(t, jwt.SigningMethodRS256, k.rsa, ok)}, []string{token(t, jwt.SigningMethodRS256, stranger.rsa, ok)}},
		{"ECDSA", publicPEM(t, &k.ecdsa.PublicKey), []string{token(t, jwt.SigningMethodES256, k.ecdsa, ok)}, []string{token(t, jwt.SigningMethodES256, stranger.ecdsa, ok), token(t, jwt.SigningMethodRS256, k.rsa, ok)}},
		{"Ed25519", publicPEM(t, k.ed.Public()), []string{token(t, jwt.SigningMethodEdDSA, k.ed, ok)}, []string{token(t, jwt.SigningMethodEdDSA, stranger.ed, ok)}},
		{"HMAC", append(secret, '\n'), []string{token(t, jwt.SigningMethodHS256, secret, ok), token(t, jwt.SigningMethodHS512, secret, ok)}, []string{token(t, jwt.SigningMethodHS256, []byte("wrong"), ok), token(t, jwt.SigningMethodNone, jwt.UnsafeAllowNoneSignatureType, ok)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			f := jwtFront(t, up.URL, tt.file, "sub")
			for i, good := range tt.good {
				a := f.send(bearer(call{key: "k"}, good))
				assert.Equal(t, a.status, 201, fmt.Sprintf("status with good token %d", i))
				// Case 38: a new credential of the same principal gets the replay.
				assert.Equal(t, a.header.Get("Idempotent-Replayed") == "true", i > 0, "replayed")
			}
			cut := tt.good[0][:len(tt.good[0])-10]
			tampered := tamper(t, tt.good[0])
			for i, bad := range append(tt.bad, "", "x", "a.b.c", cut, tampered, strings.Repeat("x", 8000)) {
				a := f.send(bearer(call{key: "k"}, bad))
				if !assert.Equal(t, a.status, 401, fmt.Sprintf("status with bad token %d", i)) {
					continue
				}
				wantProblem(t, a, 401, "unauthenticated")
			}
		})
	}
}

// tamper gives the token to another subject and keeps its signature.
func tamper(t testing.TB, token string) string {
	t.Helper()
	parts := strings.Split(token, ".")
	claims, err := json.Marshal(map[string]any{"sub": "victim"})
	if err != nil {
		t.Fatal(err)
	}
	parts[1] = base64.RawURLEncoding.EncodeToString(claims)
	return strings.Join(parts, ".")
}

// What stands in the claim is the scope: text or a number, exactly.
func TestClaims(t *testing.T) {
	t.Parallel()
	secret := []byte(strings.Repeat("s", 32))
	up := newUpstream(t, nil)
	f := jwtFront(t, up.URL, secret, "https://api.example/account")
	send := func(value any) answer {
		claims := jwt.MapClaims{}
		if value != nil {
			claims["https://api.example/account"] = value
		}
		return f.send(bearer(call{key: "k"}, token(t, jwt.SigningMethodHS256, secret, claims)))
	}
	for _, value := range []any{nil, "", true, []string{"a"}, map[string]any{"a": 1}, "a\x00b", strings.Repeat("x", 256)} {
		wantProblem(t, send(value), 400, "scope-missing")
	}
	up.wantRuns(t, 0)
	// Numbers too large for a float are told apart.
	for i, value := range []any{json.Number("9007199254740992"), json.Number("9007199254740993"), "acme", 42, -1} {
		assert.Equal(t, send(value).header.Get("Idempotent-Replayed"), "", fmt.Sprintf("replay for %v", value))
		assert.Equal(t, send(value).header.Get("Idempotent-Replayed"), "true", fmt.Sprintf("replay for %v", value))
		up.wantRuns(t, i+1)
	}
}

// The credential is one header with one scheme; a request with two could show
// one to the upstream and another to the proxy.
func TestAuthorizationHeader(t *testing.T) {
	t.Parallel()
	secret := []byte(strings.Repeat("s", 32))
	up := newUpstream(t, nil)
	f := jwtFront(t, up.URL, secret, "sub")
	good := token(t, jwt.SigningMethodHS256, secret, jwt.MapClaims{"sub": "acme"})
	other := token(t, jwt.SigningMethodHS256, secret, jwt.MapClaims{"sub": "other"})
	const head = "POST /charges HTTP/1.1\r\nHost: api\r\nIdempotency-Key: k\r\nContent-Length: 0\r\n"
	for _, lines := range []string{
		"", "Authorization:\r\n", "Authorization: " + good + "\r\n", "Authorization: Bearer\r\n", "Authorization: Basic " + good + "\r\n",
		"Authorization: Bearer " + good + "\r\nAuthorization: Bearer " + other + "\r\n",
		"Authorization: Bearer " + good + "\r\nAuthorization: Bearer " + good + "\r\n",
		"Authorization: Bearer " + good + ", Bearer " + other + "\r\n", "X-Authorization: Bearer " + good + "\r\n",
	} {
		a := sendRaw(t, f.addr, head+lines+"\r\n")
		if !assert.Equal(t, a.status, 401, fmt.Sprintf("status for %q", lines)) {
			continue
		}
		wantProblem(t, a, 401, "unauthenticated")
	}
	up.wantRuns(t, 0)
	wantFirst(t, sendRaw(t, f.addr, head+"authorization: bEARER "+good+"\r\n\r\n"), 201, "run 1")
	assert.Equal(t, up.last(t).header.Get("Authorization"), "bEARER "+good, "the credential at the upstream")
	// Without a key nobody is asked for a token.
	assert.Equal(t, sendRaw(t, f.addr, "POST /charges HTTP/1.1\r\nHost: api\r\nContent-Length: 0\r\n\r\n").status, 201, "status without a key")
	assert.Equal(t, f.send(call{method: http.MethodGet, key: "k"}).status, 201, "status of a GET")
}

// Unverified means just that.
func TestUnverifiedTokens(t *testing.T) {
	t.Parallel()
	scope, err := proxy.ParseScope("jwt:sub", proxy.ScopeOptions{JWTUnverified: true})
	if err != nil {
		t.Fatal(err)
	}
	up := newUpstream(t, nil)
	f := newFront(t, up.URL, setup{route: proxy.Route{Scope: scope}})
	wantFirst(t, f.send(bearer(call{key: "k"}, token(t, jwt.SigningMethodHS256, []byte("who knows"), jwt.MapClaims{"sub": "acme"}))), 201, "run 1")
	wantReplay(t, f.send(bearer(call{key: "k"}, token(t, jwt.SigningMethodHS256, []byte("another"), jwt.MapClaims{"sub": "acme"}))), 201, "run 1")
	wantProblem(t, f.send(bearer(call{key: "k"}, "not.a.token")), 401, "unauthenticated")
	wantProblem(t, f.send(call{key: "k"}), 401, "unauthenticated")
	assert.Equal(t, f.status("k"), kakutei.StatusSucceeded, "record")
}

// A key file that is not what its owner thinks is refused. Above all, nothing
// that is public may become the secret of an HMAC.
func TestKeyFiles(t *testing.T) {
	t.Parallel()
	k := newKeys(t)
	good := string(publicPEM(t, &k.rsa.PublicKey))
	private, err := x509.MarshalPKCS8PrivateKey(k.rsa)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(&k.rsa.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(1)}, &x509.Certificate{SerialNumber: big.NewInt(1)}, &k.rsa.PublicKey, k.rsa)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{
		"empty":                "",
		"short secret":         strings.Repeat("s", 31) + "\n",
		"private key":          string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})),
		"PKCS 1":               string(pem.EncodeToMemory(&pem.Block{Type: "RSA PUBLIC KEY", Bytes: x509.MarshalPKCS1PublicKey(&k.rsa.PublicKey)})),
		"garbage in PEM":       "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n",
		"bad certificate":      "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
		"PEM without its end":  good[:len(good)-20],
		"PEM without a line":   strings.Replace(good, "\n", "", 1),
		"PEM with bad base64":  strings.Replace(good, "MII", "M!I", 1),
		"indented PEM":         "  " + strings.ReplaceAll(good, "\n", "\n  "),
		"a JWK set":            `{"keys":[{"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZpt","e":"AQAB"}]}`,
		"a list of JWKs":       ` [{"kty":"RSA","n":"0vx7agoebGcQSuuPiLJXZpt","e":"AQAB"}]`,
		"an SSH key":           "ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAABgQC7 root@host",
		"an ECDSA SSH key":     "ecdsa-sha2-nistp256 AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAI root@host",
		"a DER public key":     string(der),
		"a DER PKCS 1 key":     string(x509.MarshalPKCS1PublicKey(&k.rsa.PublicKey)),
		"a DER certificate":    string(cert),
		"base64 of public DER": base64.StdEncoding.EncodeToString(der),
	} {
		key, err := proxy.ParseJWTKey([]byte(content))
		if !assert.ErrorIs(t, err, kakutei.ErrInvalid) {
			t.Logf("%s was taken for a key of type %T", name, key)
		}
		assert.True(t, err == nil || !contains(err.Error(), "\n"), "%s: the error has several lines: %v", name, err)
	}
	for _, content := range []string{good, "a comment before\n" + good, "\n\n" + good + "\n\n", strings.ReplaceAll(good, "\n", "\r\n")} {
		key, err := proxy.ParseJWTKey([]byte(content))
		assert.NoError(t, err)
		if !k.rsa.PublicKey.Equal(key) {
			t.Errorf("the key of %q is %v", content, key)
		}
	}
	for _, secret := range []string{strings.Repeat("s", 32), base64.StdEncoding.EncodeToString([]byte(strings.Repeat("x", 32))), "\x01\xfe" + strings.Repeat("\x80", 32)} {
		key, err := proxy.ParseJWTKey([]byte(secret + "\n"))
		assert.NoError(t, err)
		b, _ := key.([]byte)
		assert.Equal(t, string(b), secret, "secret")
	}
}
