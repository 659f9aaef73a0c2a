package proxy

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"fmt"

	"github.com/kakutei-go/kakutei"
)

// minSecretBytes is what RFC 7518 asks of a secret for HS256.
const minSecretBytes = 32

// ParseJWTKey reads the content of a key file: a PEM public key or certificate,
// or the secret of an HMAC.
func ParseJWTKey(content []byte) (crypto.PublicKey, error) {
	block, _ := pem.Decode(content)
	if block == nil {
		secret := bytes.TrimSpace(content)
		if isPublic(secret) {
			return nil, fmt.Errorf("%w: the JWT key file looks like a public key, and is not one in PEM that can be read (-----BEGIN PUBLIC KEY-----)", kakutei.ErrInvalid)
		}
		if len(secret) < minSecretBytes {
			return nil, fmt.Errorf("%w: the JWT key is neither a PEM public key nor a secret of %d bytes or more", kakutei.ErrInvalid, minSecretBytes)
		}
		return secret, nil
	}
	switch block.Type {
	case "CERTIFICATE":
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: the JWT certificate cannot be read: %w", kakutei.ErrInvalid, err)
		}
		return cert.PublicKey, nil
	case "PUBLIC KEY":
		key, err := x509.ParsePKIXPublicKey(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: the JWT public key cannot be read: %w", kakutei.ErrInvalid, err)
		}
		return key, nil
	}
	return nil, fmt.Errorf("%w: the JWT key file holds a %s; a PUBLIC KEY or CERTIFICATE is needed", kakutei.ErrInvalid, block.Type)
}

// isPublic reports what is, or was meant to be, a public key in another form:
// PEM that is damaged, a JWK, SSH, DER. Taken for the secret of an HMAC it would
// let everybody sign.
func isPublic(content []byte) bool {
	for _, begin := range []string{"{", "[", "ssh-", "ecdsa-"} {
		if bytes.HasPrefix(content, []byte(begin)) {
			return true
		}
	}
	if bytes.Contains(content, []byte("-----BEGIN")) {
		return true
	}
	der, err := base64.StdEncoding.DecodeString(string(content))
	if err != nil {
		der = content
	}
	for _, parse := range []func([]byte) error{
		func(b []byte) error { _, err := x509.ParsePKIXPublicKey(b); return err },
		func(b []byte) error { _, err := x509.ParsePKCS1PublicKey(b); return err },
		func(b []byte) error { _, err := x509.ParseCertificate(b); return err },
	} {
		if parse(der) == nil {
			return true
		}
	}
	return false
}

// methodsOf returns the signing methods that fit the key. A token may not choose
// another: an RSA key taken for an HMAC secret is public.
func methodsOf(key crypto.PublicKey) ([]string, error) {
	switch key.(type) {
	case []byte:
		return []string{"HS256", "HS384", "HS512"}, nil
	case *rsa.PublicKey:
		return []string{"RS256", "RS384", "RS512", "PS256", "PS384", "PS512"}, nil
	case *ecdsa.PublicKey:
		return []string{"ES256", "ES384", "ES512"}, nil
	case ed25519.PublicKey:
		return []string{"EdDSA"}, nil
	}
	return nil, fmt.Errorf("%w: a JWT key of type %T", kakutei.ErrInvalid, key)
}
