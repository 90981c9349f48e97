/* Logins of the C driver, over TLS: what with_access.py gives in the environment. */
#include <mongoc/mongoc.h>
#include <stdio.h>
#include <string.h>

static int passed, failed;

static void check(bool ok, const char *login, const char *what, const bson_error_t *error) {
  if (ok) {
    passed++;
  } else {
    failed++;
    printf("FAIL %s: %s: %u %s\n", login, what, error->code, error->message);
  }
}

static int documents(mongoc_cursor_t *cursor, bson_error_t *error) {
  const bson_t *doc;
  int n = 0;
  while (mongoc_cursor_next(cursor, &doc)) n++;
  if (mongoc_cursor_error(cursor, error)) n = -1;
  mongoc_cursor_destroy(cursor);
  return n;
}

static void as_user(const char *login, const char *uri) {
  bson_error_t error = {0};
  mongoc_client_t *client = mongoc_client_new(uri);
  if (client == NULL) {
    check(false, login, "the URI", &error);
    return;
  }
  bson_t reply, *command = BCON_NEW("connectionStatus", BCON_INT32(1));
  const bool known = mongoc_client_command_simple(client, "admin", command, NULL, &reply, &error);
  bson_iter_t at, users;
  check(known && bson_iter_init(&at, &reply) &&
            bson_iter_find_descendant(&at, "authInfo.authenticatedUsers.0.user", &users),
        login, "connectionStatus", &error);
  bson_destroy(&reply);
  bson_destroy(command);
  mongoc_collection_t *c = mongoc_client_get_collection(client, "access_c", "things");
  mongoc_collection_drop(c, NULL);
  mongoc_bulk_operation_t *bulk = mongoc_collection_create_bulk_operation_with_opts(c, NULL);
  for (int i = 0; i < 300; i++) {
    bson_t *d = BCON_NEW("_id", BCON_INT32(i), "v", BCON_INT32(i % 10));
    mongoc_bulk_operation_insert(bulk, d);
    bson_destroy(d);
  }
  check(mongoc_bulk_operation_execute(bulk, NULL, &error) != 0, login, "insert", &error);
  mongoc_bulk_operation_destroy(bulk);
  bson_t *filter = BCON_NEW("v", "{", "$lt", BCON_INT32(5), "}"), *opts = BCON_NEW("batchSize", BCON_INT32(7));
  check(documents(mongoc_collection_find_with_opts(c, filter, opts, NULL), &error) == 150, login, "find", &error);
  bson_t *groups = BCON_NEW("pipeline", "[", "{", "$group", "{", "_id", "$v", "}", "}", "]");
  check(documents(mongoc_collection_aggregate(c, MONGOC_QUERY_NONE, groups, NULL, NULL), &error) == 10, login,
        "aggregate", &error);
  mongoc_client_session_t *session = mongoc_client_start_session(client, NULL, &error);
  bson_t in_session = BSON_INITIALIZER;
  check(session != NULL && mongoc_client_session_append(session, &in_session, &error) &&
            mongoc_collection_count_documents(c, filter, &in_session, NULL, NULL, &error) == 150,
        login, "a session", &error);
  bson_destroy(&in_session);
  if (session != NULL) mongoc_client_session_destroy(session);
  bson_destroy(filter);
  bson_destroy(opts);
  bson_destroy(groups);
  mongoc_collection_destroy(c);
  mongoc_client_destroy(client);
}

/* What a client of this URI is told. A failed login has the code of the driver, and the server's words. */
static void refused(const char *what, const char *uri, uint32_t code, const char *words) {
  bson_error_t error = {0};
  mongoc_client_t *client = mongoc_client_new(uri);
  bson_t *command = BCON_NEW("find", "things");
  const bool in = mongoc_client_command_simple(client, "access_c", command, NULL, NULL, &error);
  check(!in && error.code == code && strstr(error.message, words) != NULL, what, "refused", &error);
  bson_destroy(command);
  mongoc_client_destroy(client);
}

int main(void) {
  mongoc_init();
  char *logins = strdup(getenv("LOGINS")), *line, *rest = logins;
  while ((line = strsep(&rest, "\n")) != NULL) {
    char *uri = strchr(line, ' ');
    *uri++ = 0;
    as_user(line, uri);
  }
  free(logins);
  refused("a wrong password", getenv("WRONG_LOGIN"), MONGOC_ERROR_CLIENT_AUTHENTICATE, "Authentication failed");
  refused("no login", getenv("NO_LOGIN"), 13, "requires authentication");
  mongoc_cleanup();
  printf("libmongoc: %d passed, %d failed\n", passed, failed);
  return failed != 0;
}
