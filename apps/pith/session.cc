// pith session: what a file of a saved conversation says of itself. No model is needed.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>

#include "args.h"
#include "commands.h"
#include "console.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/saved.h"
#include "report.h"

namespace pith::cli {
namespace {

struct SessionFileOptions {
  std::string file;
  bool json = false;
};

Json to_json(const SavedSession& saved) {
  Json json{{"version", saved.version},       {"created", saved.created},
            {"written_by", saved.written_by}, {"bytes", saved.bytes},
            {"tokens", saved.tokens.size()},  {"key", Json::object()},
            {"sections", Json::object()}};
  for (const auto& [name, value] : saved.key) json["key"][name] = value;
  for (const auto& part : saved.parts) json["sections"][part.name] = part.bytes;
  return json;
}

std::string to_text(const SavedSession& saved) {
  std::string text =
      fmt::format("session file {}, written by {} at {}\n{} tokens, {} ({} bytes)\n\n",
                  saved.version, saved.written_by, saved.created, saved.tokens.size(),
                  human_bytes(static_cast<double>(saved.bytes)), saved.bytes);
  for (const auto& [name, value] : saved.key) {
    std::string lines = value;  // a policy has a line per run of layers
    while (lines.ends_with('\n')) lines.pop_back();
    for (size_t at = 0; (at = lines.find('\n', at)) != std::string::npos; at += 15)
      lines.replace(at, 1, "\n" + std::string(14, ' '));
    text += fmt::format("{:<13} {}\n", name, lines);
  }
  return text;
}

int info(const SessionFileOptions& o) {
  const SavedSession saved = read_saved(o.file);
  if (o.json)
    print_json(to_json(saved));
  else
    write_out(to_text(saved));
  return 0;
}

int verify(const SessionFileOptions& o) {
  const SavedSession saved = read_saved(o.file, true);
  if (o.json)
    print_json({{"file", o.file}, {"bytes", saved.bytes}, {"whole", true}});
  else
    write_out(fmt::format("{}: {} bytes, all of them as they were written\n", o.file, saved.bytes));
  return 0;
}

int tokens(const SessionFileOptions& o) {
  const SavedSession saved = read_saved(o.file);
  if (o.json)
    print_json({{"count", saved.tokens.size()}, {"ids", saved.tokens}});
  else
    write_out(fmt::format("[{}]\n", fmt::join(saved.tokens, ", ")));
  return 0;
}

}  // namespace

void add_session(CLI::App& root, Action& action) {
  CLI::App* app =
      root.add_subcommand("session", "Look at a saved conversation (run --session-save)");
  app->require_subcommand(1);
  struct Kind {
    const char *name, *help;
    int (*run)(const SessionFileOptions&);
  };
  for (const Kind& kind :
       {Kind{"info", "Everything that the session depends on, and its size", info},
        Kind{"verify", "Compare every byte with its digest", verify},
        Kind{"tokens", "The ids of the session's tokens", tokens}}) {
    auto o = std::make_shared<SessionFileOptions>();
    CLI::App* one = app->add_subcommand(kind.name, kind.help);
    one->add_option("file", o->file, "A file that 'pith run --session-save' wrote")
        ->required()
        ->type_name("FILE");
    add_json_option(*one, o->json);
    one->callback([o, &action, run = kind.run] {
      action = [o, run] {
        end_at_first_interrupt();
        return run(*o);
      };
    });
  }
  app->footer(
      "Examples:\n"
      "  pith run -m models/demo -p 'The ship lay' -n 60 --session-save ship.pith\n"
      "  pith session info ship.pith\n"
      "  pith session tokens ship.pith > ids.json\n\n"
      "A session file holds the conversation: its tokens can be turned into text again.\n");
}

}  // namespace pith::cli
