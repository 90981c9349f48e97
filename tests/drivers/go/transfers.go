package main

import (
	"context"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
)

// transfers: clients at once move sums between accounts by WithTransaction, which tries again after each conflict;
// whoever looks sees the same sum. Every fourth changes his mind.
func transfers(c *mongo.Collection) error {
	const accounts, clients, each, start = 5, 8, 12, 100
	for i := 0; i < accounts; i++ {
		if _, err := c.InsertOne(ctx, bson.D{{"_id", i}, {"sum", start}}); err != nil {
			return err
		}
	}
	total := func(in context.Context) (int32, error) {
		cur, err := c.Aggregate(in, bson.A{bson.D{{"$group", bson.D{{"_id", nil}, {"sum", bson.D{{"$sum", "$sum"}}}}}}})
		if err != nil {
			return 0, err
		}
		var all []struct{ Sum int32 }
		err = cur.All(in, &all)
		return all[0].Sum, err
	}
	opts := options.Transaction().SetReadConcern(readconcern.Snapshot())
	work := func(number int) error {
		s, err := client.StartSession()
		if err != nil {
			return err
		}
		defer s.EndSession(ctx)
		for i := 0; i < each; i++ {
			from, to := (number+i)%accounts, (number+2*i+1)%accounts
			leaves := i%4 == 3
			_, err := s.WithTransaction(ctx, func(in context.Context) (any, error) {
				for account, sum := range map[int]int{from: -1, to: 1} {
					if from == to {
						break
					}
					if _, err := c.UpdateOne(in, bson.D{{"_id", account}}, bson.D{{"$inc", bson.D{{"sum", sum}}}}); err != nil {
						return nil, err
					}
				}
				sum, err := total(in)
				if err != nil {
					return nil, err
				}
				if leaves {
					return nil, errWrong
				}
				return nil, want(sum == accounts*start, "a sum of %d", sum)
			}, opts)
			if err != nil && !(leaves && err == errWrong) {
				return err
			}
		}
		return nil
	}
	var all sync.WaitGroup
	errs := make([]error, clients)
	for i := range errs {
		all.Add(1)
		go func(i int) { errs[i] = work(i); all.Done() }(i)
	}
	all.Wait()
	if err := first(errs...); err != nil {
		return err
	}
	sum, err := total(ctx)
	return first(err, want(sum == accounts*start, "a sum of %d in the end", sum))
}
