package main

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/kakutei-go/kakutei/pgstore"
)

// migrateCommand is "kakutei migrate".
func (p *program) migrateCommand() *cobra.Command {
	var store string
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Make the tables of a PostgreSQL store, or bring them up to date",
		Long: `Make the tables of a PostgreSQL store, or bring them up to date. A service needs
no right to change tables; who runs this does. A SQLite file is brought up to date
whenever it is opened.`,
	}
	cmd.PersistentFlags().StringVar(&store, "store", "", "the database, as postgres://USER@HOST/DATABASE (required)")
	// with runs f on the database that --store names.
	with := func(f func(ctx context.Context, pool *pgxpool.Pool, opts pgstore.Options) error) func(*cobra.Command, []string) error {
		return func(cmd *cobra.Command, _ []string) error {
			u, err := parseStore(store)
			if err != nil {
				return err
			}
			if u.kind != "postgres" {
				return usagef("--store: a SQLite file needs no migration; it is brought up to date when it is opened")
			}
			pool, err := u.pool(cmd.Context())
			if err != nil {
				return err
			}
			defer pool.Close()
			return f(cmd.Context(), pool, u.pg)
		}
	}
	cmd.AddCommand(&cobra.Command{
		Use: "up", Short: "Bring the tables up to date", Args: cobra.NoArgs,
		RunE: with(func(ctx context.Context, pool *pgxpool.Pool, opts pgstore.Options) error {
			if err := pgstore.Migrate(ctx, pool, opts); err != nil {
				return err
			}
			v, err := pgstore.Version(ctx, pool, opts)
			if err == nil {
				fmt.Fprintf(p.stdout, "the tables have version %d\n", v.Current)
			}
			return err
		}),
	}, &cobra.Command{
		Use: "status", Short: "Tell whether the tables are up to date (exit status 1 if not)", Args: cobra.NoArgs,
		RunE: with(func(ctx context.Context, pool *pgxpool.Pool, opts pgstore.Options) error {
			v, err := pgstore.Version(ctx, pool, opts)
			if err != nil {
				return err
			}
			fmt.Fprintf(p.stdout, "the tables have version %d, this program wants version %d\n", v.Current, v.Wanted)
			if v.Current != v.Wanted {
				return errNo
			}
			return nil
		}),
	}, &cobra.Command{
		Use: "print", Short: "Print the statements, for a migration tool of your own", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			u := storeURL{kind: "postgres"}
			if store != "" {
				var err error
				if u, err = parseStore(store); err != nil {
					return err
				}
			}
			statements, err := pgstore.MigrationSQL(u.pg)
			if err == nil {
				fmt.Fprint(p.stdout, statements)
			}
			return err
		},
	})
	return cmd
}
