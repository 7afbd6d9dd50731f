// pith tokenize: text to token ids and back.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <memory>
#include <span>

#include "commands.h"
#include "console.h"
#include "engine.h"
#include "interrupt.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "report.h"
#include "text_input.h"
#include "token_pieces.h"

namespace pith::cli {
namespace {

struct TokenizeOptions {
  ModelOptions engine;
  TextOptions text;
  std::string ids;
  int bos = -1;
  bool pieces = false;
};

int tokenize(const TokenizeOptions& o) {
  if (!o.ids.empty() && (o.text.prompt_option->count() > 0 || !o.text.file.empty())) {
    throw Error(ErrorCode::kInvalidArgument,
                "--ids turns ids into text, -p and -f turn text into ids; give one of them");
  }
  end_at_first_interrupt();
  // The weights are not looked at, but a folder without them is not a model.
  const auto tokenizer = load_tokenizer(o.engine.model);
  std::vector<int32_t> ids;
  std::string text;
  if (!o.ids.empty()) {
    ids = read_ids(o.ids, tokenizer->vocab_size());
    text = tokenizer->decode(ids);
  } else {
    text = read_text(o.text);
    ids = encode_text(*tokenizer, tokenizer->bos(), text, o.bos);
  }
  if (o.engine.json) {
    print_json({{"count", ids.size()},
                {"ids", ids},
                {"text", text},
                {"pieces", pieces_of(*tokenizer, ids)}});
  } else if (o.pieces) {
    write_out(pieces_table(*tokenizer, ids));
  } else if (!o.ids.empty()) {
    write_out(text + "\n");
  } else {
    constexpr size_t kBlock = 1 << 16;
    for (size_t i = 0; i < ids.size(); i += kBlock) {
      const std::span block(ids.data() + i, std::min(kBlock, ids.size() - i));
      write_out(fmt::format("{}{}", i == 0 ? "[" : ", ", fmt::join(block, ", ")));
    }
    write_out(ids.empty() ? "[]\n" : "]\n");
  }
  return 0;
}

}  // namespace

void add_tokenize(CLI::App& root, Action& action) {
  auto o = std::make_shared<TokenizeOptions>();
  CLI::App* app = root.add_subcommand("tokenize", "Turn text into token ids, or ids into text");
  add_model_option(*app, o->engine);
  add_text_options(*app, o->text, "The text to turn into ids");
  app->add_option("--ids", o->ids, "Ids to turn into text: 1,2,3 or a JSON file with [1, 2, 3]")
      ->type_name("IDS")
      ->group("Input");
  add_bos_option(*app, o->bos);
  app->add_flag("--pieces", o->pieces, "A table of ids and the text of each")->group("Output");
  add_json_option(*app, o->engine.json);
  app->footer(
      "Examples:\n"
      "  pith tokenize -m models/demo -p 'The ship lay at anchor'\n"
      "  pith tokenize -m models/demo -f book.txt > ids.json\n"
      "  pith tokenize -m models/demo --ids ids.json\n"
      "  echo 'one two' | pith tokenize -m models/demo --pieces\n");
  app->callback([o, &action] { action = [o] { return tokenize(*o); }; });
}

}  // namespace pith::cli
