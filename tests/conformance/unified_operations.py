"""Operations of the unified test format as calls of pymongo, and its results as the format's documents."""

import binascii, io, re

import gridfs
import pymongo
from bson import Code
from pymongo import DeleteMany, DeleteOne, InsertOne, ReplaceOne, UpdateMany, UpdateOne
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import make_read_preference, read_pref_mode_from_name
from pymongo.results import (
    BulkWriteResult,
    ClientBulkWriteResult,
    DeleteResult,
    InsertManyResult,
    InsertOneResult,
    UpdateResult,
)
from pymongo.write_concern import WriteConcern


class NoApi(Exception):
    """pymongo has no such operation or argument."""


def snake(name):
    return re.sub(r"(?<!^)([A-Z]+)", lambda m: "_" + m.group(1).lower(), name)


def read_concern(doc):
    return ReadConcern(doc.get("level"))


def write_concern(doc):
    doc = dict(doc)
    return WriteConcern(w=doc.get("w"), wtimeout=doc.get("wtimeoutMS"), j=doc.get("journal", doc.get("j")))


def read_preference(doc):
    mode = doc["mode"][0].lower() + doc["mode"][1:]
    return make_read_preference(
        read_pref_mode_from_name(mode), tag_sets=doc.get("tagSets"), max_staleness=doc.get("maxStalenessSeconds", -1)
    )


def concerns(options):
    """readConcern, writeConcern, readPreference of entity or transaction options as pymongo's arguments."""
    out = {}
    for k, v in options.items():
        if k == "readConcern":
            out["read_concern"] = read_concern(v)
        elif k == "writeConcern":
            out["write_concern"] = write_concern(v)
        elif k == "readPreference":
            out["read_preference"] = read_preference(v)
        elif k == "maxCommitTimeMS":
            out["max_commit_time_ms"] = v
        elif k == "timeoutMS":
            raise NoApi("timeoutMS on an entity")
        else:
            out[snake(k)] = v
    return out


def index_model(spec):
    spec = dict(spec)
    return pymongo.IndexModel(list(spec.pop("keys").items()), **spec)


def search_model(spec):
    return pymongo.operations.SearchIndexModel(**spec)


def hex_source(source):
    return io.BytesIO(binascii.unhexlify(source["$$hexBytes"]))


BULK = {
    "insertOne": InsertOne,
    "replaceOne": ReplaceOne,
    "updateOne": UpdateOne,
    "updateMany": UpdateMany,
    "deleteOne": DeleteOne,
    "deleteMany": DeleteMany,
}


def bulk_model(entry):
    name, args = next(iter(entry.items()))
    return BULK[name](**{snake(k): v for k, v in args.items()})


def plain(result):
    """What the format calls the result of an operation."""
    if isinstance(result, InsertOneResult):
        return {"insertedId": result.inserted_id} if result.acknowledged else {"acknowledged": False}
    if isinstance(result, InsertManyResult):
        return {"insertedIds": {str(i): v for i, v in enumerate(result.inserted_ids)}}
    if isinstance(result, UpdateResult):
        if not result.acknowledged:
            return {"acknowledged": False}
        out = {
            "matchedCount": result.matched_count,
            "modifiedCount": result.modified_count,
            "upsertedCount": 0 if result.upserted_id is None else 1,
        }
        if result.upserted_id is not None:
            out["upsertedId"] = result.upserted_id
        return out
    if isinstance(result, DeleteResult):
        return {"deletedCount": result.deleted_count} if result.acknowledged else {"acknowledged": False}
    if isinstance(result, ClientBulkWriteResult):
        if not result.acknowledged:
            return {"acknowledged": False}
        out = {
            "insertedCount": result.inserted_count,
            "upsertedCount": result.upserted_count,
            "matchedCount": result.matched_count,
            "modifiedCount": result.modified_count,
            "deletedCount": result.deleted_count,
        }
        if result.has_verbose_results:

            def upd(r):
                d = plain(r)
                d.pop("upsertedCount", None)
                return d

            out["insertResults"] = {str(i): plain(r) for i, r in result.insert_results.items()}
            out["updateResults"] = {str(i): upd(r) for i, r in result.update_results.items()}
            out["deleteResults"] = {str(i): plain(r) for i, r in result.delete_results.items()}
        return out
    if isinstance(result, BulkWriteResult):
        if not result.acknowledged:
            return {"acknowledged": False}
        return {
            "insertedCount": result.inserted_count,
            "upsertedCount": result.upserted_count,
            "matchedCount": result.matched_count,
            "modifiedCount": result.modified_count,
            "deletedCount": result.deleted_count,
            "upsertedIds": {str(i): v for i, v in (result.upserted_ids or {}).items()},
        }
    return result


def bulk_details(details):
    """BulkWriteError.details as a result."""
    return {
        "insertedCount": details["nInserted"],
        "upsertedCount": details["nUpserted"],
        "matchedCount": details["nMatched"],
        "modifiedCount": details["nModified"],
        "deletedCount": details["nRemoved"],
        "upsertedIds": {str(u["index"]): u["_id"] for u in details.get("upserted", [])},
    }


class Operations:
    """One method an operation: op_<name>(target, args)."""

    def run(self, name, target, args):
        if "rawData" in args:
            raise NoApi("rawData")
        if "timeoutMS" in args:
            raise NoApi("timeoutMS of one operation")
        method = getattr(self, "op_" + name, None)
        if method is None:
            raise NoApi(name)
        return plain(method(target, dict(args)))

    @staticmethod
    def call(f, args, keep=()):
        """Calls f with names in pymongo's spelling, but for those of `keep`, which go to the server as they are."""
        return f(**{(k if k in keep else snake(k)): v for k, v in args.items()})

    # --- collection: reads ---------------------------------------------------------------------------------
    def find_cursor(self, coll, args):
        rename = {"maxTimeMS": "max_time_ms", "maxAwaitTimeMS": None}
        wait = args.pop("maxAwaitTimeMS", None)
        kind = args.pop("cursorType", None)
        if kind:
            args["cursorType"] = {"nonTailable": 0, "tailable": 2, "tailableAwait": 34}[kind]
        if isinstance(args.get("sort"), dict):
            args["sort"] = list(args["sort"].items())
        cursor = coll.find(**{rename.get(k) or snake(k): v for k, v in args.items()})
        return cursor.max_await_time_ms(wait) if wait is not None else cursor

    def op_find(self, coll, args):
        return list(self.find_cursor(coll, args))

    def op_createFindCursor(self, coll, args):
        cursor = self.find_cursor(coll, args)
        return EagerCursor(cursor)

    def op_findOne(self, coll, args):
        args.pop("limit", None)
        if isinstance(args.get("sort"), dict):
            args["sort"] = list(args["sort"].items())
        return self.call(coll.find_one, args)

    def op_aggregate(self, target, args):
        return list(
            self.call(
                target.aggregate, args, keep=("allowDiskUse", "batchSize", "maxTimeMS", "bypassDocumentValidation")
            )
        )

    def op_countDocuments(self, coll, args):
        return self.call(coll.count_documents, args, keep=("maxTimeMS",))

    def op_estimatedDocumentCount(self, coll, args):
        return self.call(coll.estimated_document_count, args, keep=("maxTimeMS",))

    def op_distinct(self, coll, args):
        args["key"] = args.pop("fieldName")
        return self.call(coll.distinct, args, keep=("maxTimeMS",))

    def op_listIndexes(self, coll, args):
        args.pop("batchSize", None)
        return list(self.call(coll.list_indexes, args))

    def op_listSearchIndexes(self, coll, args):
        options = args.pop("aggregationOptions", {})
        return list(self.call(coll.list_search_indexes, {**args, **options}, keep=("batchSize",)))

    # --- collection: writes --------------------------------------------------------------------------------
    def op_insertOne(self, coll, args):
        return self.call(coll.insert_one, args)

    def op_insertMany(self, coll, args):
        return self.call(coll.insert_many, args)

    def op_updateOne(self, coll, args):
        return self.call(coll.update_one, args)

    def op_updateMany(self, coll, args):
        return self.call(coll.update_many, args)

    def op_replaceOne(self, coll, args):
        return self.call(coll.replace_one, args)

    def op_deleteOne(self, coll, args):
        return self.call(coll.delete_one, args)

    def op_deleteMany(self, coll, args):
        return self.call(coll.delete_many, args)

    def find_and(self, f, args):
        if "returnDocument" in args:
            args["returnDocument"] = args["returnDocument"] == "After"
        if isinstance(args.get("sort"), dict):
            args["sort"] = list(args["sort"].items())
        return self.call(f, args, keep=("maxTimeMS", "bypassDocumentValidation"))

    def op_findOneAndUpdate(self, coll, args):
        return self.find_and(coll.find_one_and_update, args)

    def op_findOneAndReplace(self, coll, args):
        return self.find_and(coll.find_one_and_replace, args)

    def op_findOneAndDelete(self, coll, args):
        return self.find_and(coll.find_one_and_delete, args)

    def op_bulkWrite(self, coll, args):
        args["requests"] = [bulk_model(r) for r in args["requests"]]
        return self.call(coll.bulk_write, args)

    def op_clientBulkWrite(self, client, args):
        args["models"] = [bulk_model(m) for m in args["models"]]
        if "writeConcern" in args:
            args["writeConcern"] = write_concern(args["writeConcern"])
        return self.call(client.bulk_write, args)

    # --- collections and indexes ----------------------------------------------------------------------------
    def op_createIndex(self, coll, args):
        keys = list(args.pop("keys").items())
        return coll.create_index(keys, **args)

    def op_dropIndex(self, coll, args):
        return coll.drop_index(args.pop("name"), **args)

    def op_dropIndexes(self, coll, args):
        return coll.drop_indexes(**args)

    def op_createSearchIndex(self, coll, args):
        return coll.create_search_index(search_model(args["model"]))

    def op_createSearchIndexes(self, coll, args):
        return coll.create_search_indexes([search_model(m) for m in args["models"]])

    def op_dropSearchIndex(self, coll, args):
        return coll.drop_search_index(**args)

    def op_updateSearchIndex(self, coll, args):
        return coll.update_search_index(**args)

    def op_rename(self, coll, args):
        if isinstance(coll, gridfs.GridFSBucket):
            return coll.rename(args["id"], args["newFilename"])
        return coll.rename(args.pop("to"), **args)

    def op_drop(self, coll, args):
        return coll.drop(**args)

    def op_createCollection(self, db, args):
        return db.create_collection(args.pop("collection"), check_exists=False, **args)

    def op_dropCollection(self, db, args):
        return db.drop_collection(args.pop("collection"), **args)

    def op_modifyCollection(self, db, args):
        return db.command("collMod", args.pop("collection"), **args)

    def op_listCollections(self, db, args):
        return list(db.list_collections(**args))

    def op_listCollectionNames(self, db, args):
        return db.list_collection_names(**args)

    def op_runCommand(self, db, args):
        return db.command(**self.command_args(args))

    def command_args(self, args):
        name = args.pop("commandName")
        command = dict(args.pop("command"))
        out = {"command": {name: command.pop(name), **command}}
        for k, v in args.items():
            out[snake(k)] = read_preference(v) if k == "readPreference" else v
        return out

    def command_cursor(self, db, args):
        batch, wait, comment = args.pop("batchSize", 0), args.pop("maxTimeMS", None), args.pop("comment", None)
        if args.pop("cursorType", None):
            pass  # the command itself says tailable; pymongo asks for nothing more
        cursor = db.cursor_command(**self.command_args(args), max_await_time_ms=wait, comment=None)
        if comment is not None:
            cursor._comment = comment
        return cursor.batch_size(batch) if batch else cursor

    def op_runCursorCommand(self, db, args):
        return list(self.command_cursor(db, args))

    def op_createCommandCursor(self, db, args):
        return self.command_cursor(db, args)

    # --- client ---------------------------------------------------------------------------------------------
    def op_listDatabases(self, client, args):
        return list(self.call(client.list_databases, args))

    def op_listDatabaseNames(self, client, args):
        return self.call(client.list_database_names, args)

    def op_dropDatabase(self, client, args):
        return client.drop_database(args.pop("database"), **args)

    # --- cursors --------------------------------------------------------------------------------------------
    def op_createChangeStream(self, target, args):
        return self.call(target.watch, args)

    def op_iterateUntilDocumentOrError(self, cursor, args):
        return next(cursor)

    def op_iterateOnce(self, cursor, args):
        return cursor.try_next()

    def op_close(self, target, args):
        return target.close()

    # --- sessions -------------------------------------------------------------------------------------------
    def op_startTransaction(self, session, args):
        session.start_transaction(**concerns(args))

    def op_commitTransaction(self, session, args):
        return session.commit_transaction()

    def op_abortTransaction(self, session, args):
        return session.abort_transaction()

    def op_endSession(self, session, args):
        return session.end_session()

    # --- GridFS ---------------------------------------------------------------------------------------------
    def op_download(self, bucket, args):
        with bucket.open_download_stream(args["id"]) as f:
            return f.read()

    def op_downloadByName(self, bucket, args):
        with bucket.open_download_stream_by_name(args.pop("filename"), **args) as f:
            return f.read()

    def op_upload(self, bucket, args):
        args["source"] = hex_source(args["source"])
        args.pop("disableMD5", None)
        if "contentType" in args:
            args["metadata"] = {**args.get("metadata", {}), "contentType": args.pop("contentType")}
        return self.call(bucket.upload_from_stream, args)

    def op_uploadWithId(self, bucket, args):
        args["source"] = hex_source(args["source"])
        args["fileId"] = args.pop("id")
        args.pop("disableMD5", None)
        return self.call(bucket.upload_from_stream_with_id, args)

    def op_delete(self, bucket, args):
        return bucket.delete(args["id"])

    def op_deleteByName(self, bucket, args):
        return bucket.delete_by_name(args["filename"])

    def op_renameByName(self, bucket, args):
        return bucket.rename_by_name(args["filename"], args["newFilename"])


class EagerCursor:
    """A find cursor whose first batch is fetched when it is made, as the format asks."""

    def __init__(self, cursor):
        self.cursor, self.first = cursor, next(cursor, None)

    def __next__(self):
        if self.first is not None:
            out, self.first = self.first, None
            return out
        return next(self.cursor)

    def try_next(self):
        try:
            return next(self)
        except StopIteration:
            return None

    def close(self):
        self.cursor.close()
