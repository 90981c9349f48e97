#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "backup/tool/actions.h"
#include "protocol/secret_arguments.h"

using namespace mayfly;

int main(int argc, char** argv) {
  ::umask(077);
  BackupToolOptions o;
  CLI::App app{"mayfly-backup: makes, lists, checks and removes backups of Mayfly servers"};
  app.set_version_flag("--version", MAYFLY_VERSION);
  app.set_help_flag("-h,--help", "show this text");
  app.require_subcommand(1);
  Result<void> (*run)(const BackupToolOptions&) = nullptr;
  auto add = [&](const char* name, const char* what, Result<void> (*f)(const BackupToolOptions&)) {
    CLI::App* sub = app.add_subcommand(name, what);
    CLI::Option* path = sub->add_option("--path", o.path, "folder of the backups, absolute");
    // An archive of the log can be verified alone.
    if (f != &VerifyBackups) path->required();
    sub->callback([&run, f] { run = f; });
    return sub;
  };
  CLI::App* create = add("create", "lets a running server make a backup", &CreateBackup);
  create->add_option("--uri", o.uri, "connection string of the server")->required();
  create->add_option("--rate", o.rate, "bytes a second at most (no limit)");
  create->add_flag("--full", o.full, "read and write every file, also those that are there");
  CLI::App* list = add("list", "what there is, oldest first", &ListBackups);
  list->add_flag("--json", o.json, "a document for each, in JSON");
  CLI::App* verify =
      add("verify", "reads everything: checksums, indexes against documents, the archived log",
          &VerifyBackups);
  verify->add_option("--id", o.id, "one backup (all)");
  verify->add_option("--archive", o.archive,
                     "folder of an archive of the log, with or without --path (log in --path)");
  verify->add_option("--encryptionKeyFile", o.key_file,
                     "the master key of encrypted backups and archives");
  verify->add_flag("--checksums", o.checksums_only, "checksums only");
  CLI::App* remove = add("delete", "removes one backup", &DeleteBackup);
  remove->add_option("--id", o.id, "which")->required();
  CLI::App* prune = add("prune", "removes all but the newest backups", &PruneBackups);
  prune->add_option("--keep", o.keep, "how many stay")->required();
  CLI11_PARSE(app, argc, argv);
  HideArguments(argc, argv, {"--uri"});  // a password may be in it
  if (auto done = run(o); !done) {
    std::fprintf(stderr, "mayfly-backup: %s (%d)\n", done.error().message.c_str(),
                 static_cast<int>(done.error().code));
    return 1;
  }
  return 0;
}
