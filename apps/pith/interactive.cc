// run -i: each line is appended to one cache and the model continues from there. The text typed is
// not put into a chat template.

#include <fmt/format.h>

#include <optional>

#include "commands.h"
#include "console.h"
#include "interactive.h"
#include "interrupt.h"
#include "line_reader.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "report.h"
#include "rows_table.h"
#include "text_input.h"

namespace pith::cli {
namespace {

constexpr std::string_view kHelp =
    "Each line is appended to the conversation and the model continues from there; no chat "
    "template\n"
    "is put around it ('pith chat' does that).\n"
    "  /stats  numbers of the last answer and of the cache\n"
    "  /rows   what each layer holds\n"
    "  /reset  forget everything\n"
    "  /fork   remember this point; /back returns to it\n"
    "  /quit   end (also Ctrl-D, or Ctrl-C twice at the prompt)\n"
    "Ctrl-C stops an answer.\n";

class Chat {
 public:
  Chat(Session session, const InteractiveOptions& options)
      : options_(options), empty_(session.fork()), now_{std::move(session), options.bos} {}

  int run() {
    if (lines_.terminal())
      fmt::print(stderr, "Interactive: type a text; /help shows the commands.\n");
    if (!options_.first.empty()) {
      if (options_.echo_first) write_out(options_.first);
      answer(options_.first);
    }
    for (;;) {
      if (lines_.terminal()) fmt::print(stderr, "\n");
      const auto text = lines_.read();
      if (!text) return interrupted() ? kExitInterrupted : 0;
      if (*text == "/quit" || *text == "/exit") return 0;
      if (!text->empty()) obey_or_answer(*text);
    }
  }

 private:
  struct Point {
    Session session;
    int bos;  // -1 or as asked for the first text, 0 after it
  };

  void obey_or_answer(const std::string& text) {
    if (text == "/help") {
      fmt::print(stderr, "{}{}", kHelp, line_help(lines_));
    } else if (text == "/stats") {
      print_statistics();
    } else if (text == "/rows") {
      fmt::print(stderr, "{}", rows_table(now_.session));
    } else if (text == "/reset") {
      now_ = Point{empty_.fork(), options_.bos};
      fmt::print(stderr, "The conversation is empty.\n");
    } else if (text == "/fork") {
      saved_.emplace(Point{now_.session.fork(), now_.bos});
      fmt::print(stderr, "Remembered at {} tokens.\n", now_.session.tokens());
    } else if (text == "/back") {
      go_back();
    } else if (text.starts_with('/')) {
      fmt::print(stderr, "There is no command {}; /help shows those that exist.\n", text);
    } else {
      answer(text);
    }
  }

  void go_back() {
    if (!saved_) {
      fmt::print(stderr, "Nothing is remembered yet; /fork remembers a point.\n");
      return;
    }
    now_ = Point{saved_->session.fork(), saved_->bos};
    fmt::print(stderr, "Back at {} tokens.\n", now_.session.tokens());
  }

  // An error ends the turn, not the conversation.
  void answer(const std::string& text) {
    try {
      require_utf8(text, "the line");
      Session& session = now_.session;
      require_may_fit(session.model().tokenizer(), text.size(), session.context());
      const auto ids = encode_prompt(session.model(), text, now_.bos);
      ProgressBar bar("reading", "tokens", false);
      const auto shown = [](std::string_view piece) { write_out(piece); };
      last_ = generate(session, ids, options_.generate, shown, bar.callback());
      now_.bos = 0;
      write_out("\n");
      if (last_->reason == StopReason::kContextFull) {
        fmt::print(stderr, "The context of {} tokens is full; /reset starts anew, -c raises it.\n",
                   session.context());
      }
    } catch (const Error& error) {
      say(fmt::format("pith: error: {}", error.what()));
    }
    clear_interrupt();
  }

  void print_statistics() {
    if (!last_) {
      fmt::print(stderr, "Nothing has been answered yet.\n");
      return;
    }
    const uint64_t seed = options_.generate.sampling.seed;
    fmt::print(stderr, "{}", to_text({*last_, now_.session, seed}));
  }

  const InteractiveOptions& options_;
  Session empty_;
  LineReader lines_;
  Point now_;
  std::optional<Point> saved_;
  std::optional<GenerateResult> last_;
};

}  // namespace

int run_interactive(Session session, const InteractiveOptions& options) {
  return Chat(std::move(session), options).run();
}

}  // namespace pith::cli
