// Logins, over TLS: what with_access.py gives in the environment.
package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver"
)

func connect(uri string) (*mongo.Client, error) {
	return mongo.Connect(options.Client().ApplyURI(uri).SetServerSelectionTimeout(patience()))
}

// codeOf is the code of the server's error that is in err; 0 for none.
func codeOf(err error) int {
	var command mongo.CommandError
	if errors.As(err, &command) {
		return int(command.Code)
	}
	var low driver.Error
	if errors.As(err, &low) {
		return int(low.Code)
	}
	if err != nil && strings.Contains(err.Error(), "AuthenticationFailed") {
		return 18
	}
	return 0
}

func asUser(uri string) error {
	var err error
	if client, err = connect(uri); err != nil {
		return err
	}
	defer client.Disconnect(ctx)
	var who struct {
		AuthInfo struct{ AuthenticatedUsers []bson.D } `bson:"authInfo"`
	}
	if err = client.Database("admin").RunCommand(ctx, bson.D{{"connectionStatus", 1}}).Decode(&who); err != nil {
		return err
	}
	if n := len(who.AuthInfo.AuthenticatedUsers); n != 1 {
		return want(false, "%d users", n)
	}
	if err = lookAtServer(); err != nil {
		return err
	}
	db := client.Database("access_go")
	for _, t := range []test{{"crud", crud}, {"cursors", cursors}, {"sessions", sessions}} {
		c := db.Collection(t.name)
		if err = first(c.Drop(ctx), t.run(c)); err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	return db.Drop(ctx)
}

// refused: a client of this URI is told this code.
func refused(uri string, code int) error {
	c, err := connect(uri)
	if err != nil {
		return err
	}
	defer c.Disconnect(ctx)
	err = c.Database("access_go").RunCommand(ctx, bson.D{{"find", "things"}}).Err()
	return want(codeOf(err) == code, "code %d: %v", codeOf(err), err)
}

func access(logins string) {
	passed, failed := 0, 0
	count := func(name string, err error) {
		if err != nil {
			failed++
			fmt.Printf("FAIL %s: %v\n", name, err)
		} else {
			passed++
		}
	}
	for _, line := range strings.Split(logins, "\n") {
		name, uri, _ := strings.Cut(line, " ")
		count(name, asUser(uri))
	}
	count("a wrong password", refused(os.Getenv("WRONG_LOGIN"), 18))
	count("no login", refused(os.Getenv("NO_LOGIN"), 13))
	fmt.Printf("go: %d passed, %d failed\n", passed, failed)
	if failed > 0 {
		os.Exit(1)
	}
}
