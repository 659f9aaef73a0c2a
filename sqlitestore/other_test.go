//go:build !unix

package sqlitestore

import (
	"context"
	"errors"
)

func childReadOnly(context.Context, []string) error { return errors.ErrUnsupported }

func childFull(context.Context, []string) error { return errors.ErrUnsupported }
