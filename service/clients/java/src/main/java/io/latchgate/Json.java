package io.latchgate;

import java.util.ArrayList;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** JSON, because the JDK has none: maps, lists, strings, longs, doubles, booleans and null. */
final class Json {
    private final String text;
    private int at;

    private Json(String text) {
        this.text = text;
    }

    /** JSON that is written already: the caller may change the value while a call is repeated. */
    record Text(String text) {
        static Text of(Object value) { return new Text(write(value)); }
    }

    static String write(Object value) {
        if (value == null || value instanceof Boolean || value instanceof Number number && Double.isFinite(number.doubleValue())) {
            return String.valueOf(value);
        }
        if (value instanceof Text written) return written.text;
        if (value instanceof CharSequence) return quote(value.toString());
        if (value instanceof Collection<?> list) return list.stream().map(Json::write).collect(Collectors.joining(",", "[", "]"));
        if (value instanceof Map<?, ?> map) {
            Stream<String> members = map.entrySet().stream().map(entry -> quote(String.valueOf(entry.getKey())) + ":" + write(entry.getValue()));
            return members.collect(Collectors.joining(",", "{", "}"));
        }
        throw new IllegalArgumentException("not JSON: " + value.getClass().getName());
    }

    private static String quote(String string) {
        StringBuilder out = new StringBuilder("\"");
        for (char letter : string.toCharArray()) {
            if (letter == '"' || letter == '\\') out.append('\\').append(letter);
            else if (letter < ' ' || Character.isSurrogate(letter)) out.append(String.format("\\u%04x", (int) letter));
            else out.append(letter);
        }
        return out.append('"').toString();
    }

    /** The object that this text is. */
    @SuppressWarnings("unchecked")
    static Map<String, Object> parse(String text) {
        Json json = new Json(text);
        Object value = json.value();
        if (!(value instanceof Map) || json.peek() != 0) throw new IllegalArgumentException("no JSON object");
        return (Map<String, Object>) value;
    }

    private char peek() {
        while (at < text.length() && " \t\r\n".indexOf(text.charAt(at)) >= 0) at++;
        return at < text.length() ? text.charAt(at) : 0;
    }

    private boolean take(char expected) {
        if (peek() != expected) return false;
        at++;
        return true;
    }

    private void need(char expected) {
        if (!take(expected)) throw new IllegalArgumentException("JSON needs " + expected + " at " + at);
    }

    private Object value() {
        switch (peek()) {
            case '{': {
                Map<String, Object> map = new LinkedHashMap<>();
                for (at++; !take('}'); ) {
                    if (!map.isEmpty()) need(',');
                    if (peek() != '"') throw new IllegalArgumentException("JSON needs a name at " + at);
                    String name = string();
                    need(':');
                    map.put(name, value());
                }
                return map;
            }
            case '[': {
                List<Object> list = new ArrayList<>();
                for (at++; !take(']'); list.add(value())) if (!list.isEmpty()) need(',');
                return list;
            }
            case '"':
                return string();
            default:
                return word();
        }
    }

    private Object word() {
        int start = at;
        while (at < text.length() && (Character.isLetterOrDigit(text.charAt(at)) || "+-.".indexOf(text.charAt(at)) >= 0)) at++;
        String word = text.substring(start, at);
        switch (word) {
            case "null": return null;
            case "true": return true;
            case "false": return false;
            default: return word.matches("-?\\d{1,18}") ? (Object) Long.valueOf(word) : Double.valueOf(word);
        }
    }

    private String string() {
        StringBuilder out = new StringBuilder();
        for (at++; ; at++) {
            if (at >= text.length()) throw new IllegalArgumentException("JSON ends in a string");
            char letter = text.charAt(at);
            if (letter == '"') break;
            if (letter != '\\') {
                out.append(letter);
                continue;
            }
            letter = at + 1 < text.length() ? text.charAt(++at) : 0;
            int known = "bfnrt".indexOf(letter);
            if (known >= 0) {
                out.append("\b\f\n\r\t".charAt(known));
            } else if (letter == 'u' && at + 4 < text.length()) {
                out.append((char) Integer.parseInt(text.substring(at + 1, at + 5), 16));
                at += 4;
            } else {
                out.append(letter);
            }
        }
        at++;
        return out.toString();
    }
}
