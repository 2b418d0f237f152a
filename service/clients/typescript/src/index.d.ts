// For `import`. The declarations are those for `require`, because an ES module may take them from there, and not the other way round.
export * from "./index.cjs";
