#include "line_reader.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <clocale>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "interrupt.h"
#include "pith/error.h"
#include "pith/tokenizer.h"
#include "resumed.h"

#ifdef PITH_LIBEDIT
#include <histedit.h>
#endif

namespace pith::cli {

#ifdef PITH_LIBEDIT

// libedit over standard input and standard error, so that answers on standard output stay alone.
class LineReader::Editor {
 public:
  // Descriptors are named, since stderr is a stream of ours that has none (console.cc): libedit
  // would take it for a file and read lines as they come.
  Editor()
      : edit_(
            el_init_fd("pith", stdin, stderr, stderr, STDIN_FILENO, STDERR_FILENO, STDERR_FILENO)),
        history_(history_init()) {
    HistEvent event;
    history(history_, &event, H_SETSIZE, 1000);
    history(history_, &event, H_SETUNIQUE, 1);
    el_set(edit_, EL_CLIENTDATA, this);
    el_set(edit_, EL_PROMPT, &prompt_of);
    el_set(edit_, EL_SIGNAL, 0);  // the handler of interrupt.h stays
    el_set(edit_, EL_EDITOR, "emacs");
    el_set(edit_, EL_HIST, history, history_);
    el_wset(edit_, EL_GETCFN, &read_character);
    el_set(edit_, EL_ADDFN, "pith-paste", "take what is pasted", &take_paste);
    el_set(edit_, EL_ADDFN, "pith-line", "begin another line", &take_new_line);
    bind("\\e[200~", "pith-paste");
    bind("\\e\\r", "pith-line");
    bind("\\e\\n", "pith-line");
    bind("\\e[3~", "ed-delete-next-char");
    bind("\\e[H", "ed-move-to-beg");
    bind("\\e[F", "ed-move-to-end");
    bind("^R", "em-inc-search-prev");
  }
  ~Editor() {
    history_end(history_);
    el_end(edit_);
  }
  Editor(const Editor&) = delete;
  Editor& operator=(const Editor&) = delete;

  /// A line, or nothing at the end of input, after the second Ctrl-C on an empty line, or SIGTERM.
  std::optional<std::string> read(const char* prompt) {
    prompt_ = prompt;
    for (;;) {
      typed_ = false;
      int count = 0;
      el_resize(edit_);
      ready_ = false;
      const char* line = el_gets(edit_, &count);
      bracketed_paste(false);
      if (line != nullptr && count > 0) {
        std::string text(line, static_cast<size_t>(count));
        if (text.ends_with('\n')) text.pop_back();
        asked_ = false;
        remember(text);
        return text;
      }
      fmt::print(stderr, "\n");
      if (!interrupted() || terminated() || (!typed_ && asked_)) return std::nullopt;
      if (!typed_) fmt::print(stderr, "Ctrl-C again, Ctrl-D or /quit ends.\n");
      asked_ = !typed_;
      clear_interrupt();
      el_reset(edit_);
    }
  }

 private:
  static Editor& self(EditLine* edit) {
    Editor* out = nullptr;
    el_get(edit, EL_CLIENTDATA, &out);
    return *out;
  }
  static char* prompt_of(EditLine* edit) { return const_cast<char*>(self(edit).prompt_); }

  // Terminals then mark what is pasted, so that its line ends do not send it off.
  static void bracketed_paste(bool on) { fmt::print(stderr, "\x1B[?2004{}", on ? 'h' : 'l'); }

  void bind(const char* keys, const char* function) {
    el_set(edit_, EL_BIND, keys, function, nullptr);
  }

  void remember(const std::string& text) {
    if (text.find_first_not_of(" \n") == std::string::npos) return;
    HistEvent event;
    history(history_, &event, H_ENTER, text.c_str());
  }

  /// After fg the shell's modes of the terminal are in force, and its text stands where the line
  /// was. libedit thinks that it still has the terminal.
  static void redraw(EditLine* edit) {
    el_set(edit, EL_PREP_TERM, 0);
    el_set(edit, EL_PREP_TERM, 1);
    bracketed_paste(true);
    el_set(edit, EL_REFRESH);
  }

  /// One character of UTF-8; libedit's own reader would go on after Ctrl-C. It is first asked for
  /// one when it has the terminal, which is after the prompt.
  static int read_character(EditLine* edit, wchar_t* out) {
    if (!std::exchange(self(edit).ready_, true)) bracketed_paste(true);
    char bytes[4];
    size_t size = 0;
    for (;;) {
      if (!wait_for_input(STDIN_FILENO)) {
        const LineInfoW* line = el_wline(edit);
        self(edit).typed_ = line->lastchar > line->buffer;
        return -1;
      }
      if (resumed()) {
        redraw(edit);
        continue;
      }
      const ssize_t got = ::read(STDIN_FILENO, bytes + size, 1);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return got < 0 ? -1 : 0;
      ++size;
      std::mbstate_t state{};
      const size_t used = std::mbrtowc(out, bytes, size, &state);
      if (used == static_cast<size_t>(-2) && size < sizeof bytes) continue;
      if (used > sizeof bytes) *out = L'\xFFFD';  // no UTF-8
      return 1;
    }
  }

  static unsigned char take_paste(EditLine* edit, int) {
    static constexpr std::wstring_view kEnd = L"\x1B[201~";
    std::wstring text;
    wchar_t c = 0;
    while (!text.ends_with(kEnd) && el_wgetc(edit, &c) == 1) text += c == L'\r' ? L'\n' : c;
    if (text.ends_with(kEnd)) text.resize(text.size() - kEnd.size());
    while (text.ends_with(L'\n')) text.pop_back();
    return el_winsertstr(edit, text.c_str()) == 0 ? CC_REFRESH : CC_ERROR;
  }

  static unsigned char take_new_line(EditLine* edit, int) {
    return el_winsertstr(edit, L"\n") == 0 ? CC_REFRESH : CC_ERROR;
  }

  EditLine* edit_;
  History* history_;
  const char* prompt_ = "";
  bool ready_ = false;  // keys come one by one
  bool typed_ = false;  // something stood on the line when Ctrl-C came
  bool asked_ = false;  // a Ctrl-C came at an empty line, and nothing since
};

namespace {

bool can_edit() {
  const char* term = std::getenv("TERM");
  return isatty(STDIN_FILENO) != 0 && isatty(STDERR_FILENO) != 0 && term != nullptr &&
         *term != '\0' && std::strcmp(term, "dumb") != 0 &&
         std::setlocale(LC_CTYPE, "C.UTF-8") != nullptr;
}

}  // namespace

LineReader::LineReader() : editor_(can_edit() ? std::make_unique<Editor>() : nullptr) {}

#else

class LineReader::Editor {
 public:
  std::optional<std::string> read(const char*) { return std::nullopt; }
};

LineReader::LineReader() = default;

#endif

LineReader::~LineReader() = default;

bool LineReader::terminal() const { return isatty(STDIN_FILENO) != 0; }
bool LineReader::editing() const { return editor_ != nullptr; }

std::optional<std::string> LineReader::read() {
  std::string text;
  for (;;) {
    const auto line = read_line(text.empty() ? "> " : "... ");
    if (!line) return std::nullopt;
    if (!line->ends_with('\\')) return text + *line;
    text += line->substr(0, line->size() - 1) + "\n";
  }
}

std::optional<std::string> LineReader::read_line(const char* prompt) {
  if (editor_ != nullptr) return editor_->read(prompt);
  if (terminal()) fmt::print(stderr, "{}", prompt);
  return read_plain_line();
}

// read() is used because a buffered reader would restart after a signal.
std::optional<std::string> LineReader::read_plain_line() {
  for (size_t seen = 0;;) {  // a long line is searched once
    if (const size_t end = buffer_.find('\n', seen); end != std::string::npos) {
      std::string line = buffer_.substr(0, end);
      buffer_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return line;
    }
    seen = buffer_.size();
    char piece[65536];
    if (!wait_for_input(STDIN_FILENO)) return std::nullopt;
    if (resumed()) continue;
    const ssize_t n = ::read(STDIN_FILENO, piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (n < 0 || buffer_.empty()) return std::nullopt;
      return std::exchange(buffer_, {});
    }
    buffer_.append(piece, static_cast<size_t>(n));
    if (buffer_.size() > Tokenizer::kMaxTextBytes)
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("a line has more than {} bytes; send shorter ones, or a file with -f",
                              Tokenizer::kMaxTextBytes));
  }
}

const char* line_help(const LineReader& lines) {
  return lines.editing()
             ? "Alt-Enter, or a backslash at the end of a line, begins another line; what is\n"
               "pasted stays whole. Arrows and Ctrl-R go through what was typed.\n"
             : "A line that ends in a backslash continues in the next.\n";
}

}  // namespace pith::cli
