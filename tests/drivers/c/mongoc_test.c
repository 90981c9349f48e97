/* The C driver: connect, CRUD, bulk, cursor, index, TTL, errors. */
#include <mongoc/mongoc.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static int passed, failed;
#define CHECK(x)                                                                          \
  do {                                                                                    \
    if (x) passed++;                                                                      \
    else { failed++; printf("FAIL line %d: %s (%s)\n", __LINE__, #x, error.message); }    \
  } while (0)

int main(void) {
  bson_error_t error = {0};
  mongoc_init();
  mongoc_client_t *client = mongoc_client_new(getenv("MONGODB_URI"));
  mongoc_database_t *db = mongoc_client_get_database(client, "c_driver");
  CHECK(mongoc_database_drop(db, &error));
  mongoc_collection_t *c = mongoc_client_get_collection(client, "c_driver", "things");

  for (int i = 0; i < 500; i++) {
    bson_t *d = BCON_NEW("_id", BCON_INT32(i), "v", BCON_INT32(i % 10));
    if (!mongoc_collection_insert_one(c, d, NULL, NULL, &error)) { failed++; printf("FAIL insert: %s\n", error.message); }
    bson_destroy(d);
  }
  bson_t *dup = BCON_NEW("_id", BCON_INT32(1));
  CHECK(!mongoc_collection_insert_one(c, dup, NULL, NULL, &error) && error.code == 11000);
  bson_destroy(dup);

  bson_t *filter = BCON_NEW("v", "{", "$lt", BCON_INT32(3), "}");
  CHECK(mongoc_collection_count_documents(c, filter, NULL, NULL, NULL, &error) == 150);
  bson_t *opts = BCON_NEW("batchSize", BCON_INT32(7), "sort", "{", "_id", BCON_INT32(-1), "}");
  mongoc_cursor_t *cursor = mongoc_collection_find_with_opts(c, filter, opts, NULL);
  const bson_t *doc;
  int n = 0, last = 1000, sorted = 1;
  while (mongoc_cursor_next(cursor, &doc)) {
    bson_iter_t it;
    bson_iter_init_find(&it, doc, "_id");
    if (bson_iter_int32(&it) >= last) sorted = 0;
    last = bson_iter_int32(&it);
    n++;
  }
  CHECK(!mongoc_cursor_error(cursor, &error) && n == 150 && sorted);
  mongoc_cursor_destroy(cursor);

  bson_t *update = BCON_NEW("$inc", "{", "n", BCON_INT32(1), "}"), reply;
  CHECK(mongoc_collection_update_many(c, filter, update, NULL, &reply, &error));
  bson_iter_t it;
  CHECK(bson_iter_init_find(&it, &reply, "modifiedCount") && bson_iter_as_int64(&it) == 150);
  bson_destroy(&reply);

  mongoc_bulk_operation_t *bulk = mongoc_collection_create_bulk_operation_with_opts(c, NULL);
  bson_t *ins = BCON_NEW("_id", "bulk"), *sel = BCON_NEW("_id", "bulk"), *upd = BCON_NEW("$set", "{", "x", BCON_BOOL(true), "}");
  mongoc_bulk_operation_insert(bulk, ins);
  mongoc_bulk_operation_update_one(bulk, sel, upd, false);
  mongoc_bulk_operation_remove_one(bulk, sel);
  CHECK(mongoc_bulk_operation_execute(bulk, &reply, &error) != 0);
  CHECK(bson_iter_init_find(&it, &reply, "nRemoved") && bson_iter_as_int64(&it) == 1);
  bson_destroy(&reply);
  mongoc_bulk_operation_destroy(bulk);

  bson_t *create = BCON_NEW("createIndexes", "things", "indexes", "[", "{", "key", "{", "at", BCON_INT32(1), "}", "name", "at_1",
                            "expireAfterSeconds", BCON_INT32(0), "}", "]");
  CHECK(mongoc_database_command_simple(db, create, NULL, NULL, &error));
  bson_t *due = BCON_NEW("_id", "due", "at", BCON_DATE_TIME(1000));
  CHECK(mongoc_collection_insert_one(c, due, NULL, NULL, &error));
  bson_t *due_filter = BCON_NEW("_id", "due");
  const char *slowness = getenv("MAYFLY_SLOWNESS");  /* golden/waits.py */
  time_t end = time(NULL) + (time_t)(60 * (slowness ? atof(slowness) : 1));
  int64_t left = 1;
  while (left == 1 && time(NULL) < end)  // clock: a deadline that only a hang misses
    left = mongoc_collection_count_documents(c, due_filter, NULL, NULL, NULL, &error);
  CHECK(left == 0);

  bson_t *bad = BCON_NEW("nonsense", BCON_INT32(1));
  CHECK(!mongoc_database_command_simple(db, bad, NULL, NULL, &error) && error.code == 59);
  bson_t *pipeline = BCON_NEW("pipeline", "[", "{", "$group", "{", "_id", "$v", "n", "{", "$sum", BCON_INT32(1), "}", "}", "}", "]");
  cursor = mongoc_collection_aggregate(c, MONGOC_QUERY_NONE, pipeline, NULL, NULL);
  n = 0;
  while (mongoc_cursor_next(cursor, &doc)) n++;
  CHECK(!mongoc_cursor_error(cursor, &error) && n == 10);
  mongoc_cursor_destroy(cursor);

  bson_destroy(filter); bson_destroy(opts); bson_destroy(update); bson_destroy(ins); bson_destroy(sel); bson_destroy(upd);
  bson_destroy(create); bson_destroy(due); bson_destroy(due_filter); bson_destroy(bad); bson_destroy(pipeline);
  mongoc_collection_destroy(c);
  mongoc_database_destroy(db);
  mongoc_client_destroy(client);
  mongoc_cleanup();
  printf("libmongoc: %d passed, %d failed\n", passed, failed);
  return failed != 0;
}
